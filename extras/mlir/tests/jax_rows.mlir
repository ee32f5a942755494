// Printed by JAX 0.10.2: jax.jit(rows).lower(x).as_text(debug_info=False). The inputs and JAX's outputs are in jax_runs.npz.
//   def rows(x):
//       x=dq(q(x,.02,3),.02,3)
//       y=dq(q(x@dq(w3,np.float32(.01)),.05,0),.05,0)
//       y=dq(q(jax.nn.gelu(y,approximate=False),.05,-100),.05,-100)
//       z=dq(q(jax.nn.silu(y),.05,-100),.05,-100)
//       y=dq(q(y*z,.05,-100),.05,-100)
//       y=jnp.split(y,2,axis=-1)
//       y=dq(q(jnp.concatenate([y[1],y[0]],-1),.05,-100),.05,-100)
//       m=jnp.mean(y,-1,keepdims=True); v=jnp.mean((y-m)**2,-1,keepdims=True)
//       y=dq(q((y-m)/jnp.sqrt(v+1e-5),.05,0),.05,0)
//       h=y.reshape(2,4,4).transpose(1,0,2)
//       s=dq(q(jnp.einsum('hqd,hkd->hqk',h,h)*.5,.1,0),.1,0)
//       p=dq(q(jax.nn.softmax(s,-1),1/256,-128),1/256,-128)
//       return dq(q(jnp.einsum('hqk,hkd->hqd',p,h),.05,0),.05,0)
module @jit_rows attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x16xf32>) -> (tensor<4x2x4xf32> {jax.result_info = "result"}) {
    %c = stablehlo.constant dense<"0x00FF0D3ED1AE2DE36D903539C597D1E5795EBBF81968A3436C69C7A11793A292B65D2B227BFF8BAAC32CDBD19D3587F53E012F49BA988F14C4B33B4E73FD057C00AFC1758B4C25FB544FF01A4227FC6961910B5596E102D3317DDD479EFC82EC845F77975034CD49754B30D21B4B36BAE9DD31EBEB0A149D6BE8AD81EF3ECC59B3A4E433CD51867A8C5781ECCF792778EA0000400269B1F9BF5CA33368CBC74317116198C6E46A93F3F984ED25ECCE157AA0C96ECC2EDA5215642215FD8B9F3523119E524B08C14F057EC8DA4DACD2E4394049F01D1645A1D139B4C879B17E5CA810D3FC1B656D96AE31B5D415AD7D2CBADD25D41E70DDB3C9030E8724AA2061"> : tensor<16x16xi8>
    %cst = stablehlo.constant dense<2.000000e-02> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %1 = stablehlo.divide %arg0, %0 : tensor<2x16xf32>
    %2 = call @round(%1) : (tensor<2x16xf32>) -> tensor<2x16xf32>
    %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %4 = stablehlo.add %2, %3 : tensor<2x16xf32>
    %c_1 = stablehlo.constant dense<-128> : tensor<i32>
    %c_2 = stablehlo.constant dense<127> : tensor<i32>
    %5 = call @clip(%4, %c_1, %c_2) : (tensor<2x16xf32>, tensor<i32>, tensor<i32>) -> tensor<2x16xf32>
    %6 = stablehlo.convert %5 : (tensor<2x16xf32>) -> tensor<2x16xi8>
    %7 = stablehlo.convert %6 : (tensor<2x16xi8>) -> tensor<2x16xf32>
    %cst_3 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %9 = stablehlo.subtract %7, %8 : tensor<2x16xf32>
    %cst_4 = stablehlo.constant dense<2.000000e-02> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %11 = stablehlo.multiply %9, %10 : tensor<2x16xf32>
    %12 = stablehlo.convert %c : (tensor<16x16xi8>) -> tensor<16x16xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %13 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %14 = stablehlo.subtract %12, %13 : tensor<16x16xf32>
    %cst_6 = stablehlo.constant dense<0.00999999977> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %16 = stablehlo.multiply %14, %15 : tensor<16x16xf32>
    %17 = stablehlo.dot_general %11, %16, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x16xf32>, tensor<16x16xf32>) -> tensor<2x16xf32>
    %cst_7 = stablehlo.constant dense<5.000000e-02> : tensor<f32>
    %18 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %19 = stablehlo.divide %17, %18 : tensor<2x16xf32>
    %20 = call @round(%19) : (tensor<2x16xf32>) -> tensor<2x16xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %21 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %22 = stablehlo.add %20, %21 : tensor<2x16xf32>
    %c_9 = stablehlo.constant dense<-128> : tensor<i32>
    %c_10 = stablehlo.constant dense<127> : tensor<i32>
    %23 = call @clip(%22, %c_9, %c_10) : (tensor<2x16xf32>, tensor<i32>, tensor<i32>) -> tensor<2x16xf32>
    %24 = stablehlo.convert %23 : (tensor<2x16xf32>) -> tensor<2x16xi8>
    %25 = stablehlo.convert %24 : (tensor<2x16xi8>) -> tensor<2x16xf32>
    %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %26 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %27 = stablehlo.subtract %25, %26 : tensor<2x16xf32>
    %cst_12 = stablehlo.constant dense<5.000000e-02> : tensor<f32>
    %28 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %29 = stablehlo.multiply %27, %28 : tensor<2x16xf32>
    %cst_13 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %30 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %31 = stablehlo.multiply %30, %29 : tensor<2x16xf32>
    %32 = stablehlo.negate %29 : tensor<2x16xf32>
    %cst_14 = stablehlo.constant dense<0.707106769> : tensor<f32>
    %33 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %34 = stablehlo.multiply %32, %33 : tensor<2x16xf32>
    %35 = chlo.erfc %34 : tensor<2x16xf32> -> tensor<2x16xf32>
    %36 = stablehlo.multiply %31, %35 : tensor<2x16xf32>
    %cst_15 = stablehlo.constant dense<5.000000e-02> : tensor<f32>
    %37 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %38 = stablehlo.divide %36, %37 : tensor<2x16xf32>
    %39 = call @round(%38) : (tensor<2x16xf32>) -> tensor<2x16xf32>
    %cst_16 = stablehlo.constant dense<-1.000000e+02> : tensor<f32>
    %40 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %41 = stablehlo.add %39, %40 : tensor<2x16xf32>
    %c_17 = stablehlo.constant dense<-128> : tensor<i32>
    %c_18 = stablehlo.constant dense<127> : tensor<i32>
    %42 = call @clip(%41, %c_17, %c_18) : (tensor<2x16xf32>, tensor<i32>, tensor<i32>) -> tensor<2x16xf32>
    %43 = stablehlo.convert %42 : (tensor<2x16xf32>) -> tensor<2x16xi8>
    %44 = stablehlo.convert %43 : (tensor<2x16xi8>) -> tensor<2x16xf32>
    %cst_19 = stablehlo.constant dense<-1.000000e+02> : tensor<f32>
    %45 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %46 = stablehlo.subtract %44, %45 : tensor<2x16xf32>
    %cst_20 = stablehlo.constant dense<5.000000e-02> : tensor<f32>
    %47 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %48 = stablehlo.multiply %46, %47 : tensor<2x16xf32>
    %49 = call @silu(%48) : (tensor<2x16xf32>) -> tensor<2x16xf32>
    %cst_21 = stablehlo.constant dense<5.000000e-02> : tensor<f32>
    %50 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %51 = stablehlo.divide %49, %50 : tensor<2x16xf32>
    %52 = call @round(%51) : (tensor<2x16xf32>) -> tensor<2x16xf32>
    %cst_22 = stablehlo.constant dense<-1.000000e+02> : tensor<f32>
    %53 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %54 = stablehlo.add %52, %53 : tensor<2x16xf32>
    %c_23 = stablehlo.constant dense<-128> : tensor<i32>
    %c_24 = stablehlo.constant dense<127> : tensor<i32>
    %55 = call @clip(%54, %c_23, %c_24) : (tensor<2x16xf32>, tensor<i32>, tensor<i32>) -> tensor<2x16xf32>
    %56 = stablehlo.convert %55 : (tensor<2x16xf32>) -> tensor<2x16xi8>
    %57 = stablehlo.convert %56 : (tensor<2x16xi8>) -> tensor<2x16xf32>
    %cst_25 = stablehlo.constant dense<-1.000000e+02> : tensor<f32>
    %58 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %59 = stablehlo.subtract %57, %58 : tensor<2x16xf32>
    %cst_26 = stablehlo.constant dense<5.000000e-02> : tensor<f32>
    %60 = stablehlo.broadcast_in_dim %cst_26, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %61 = stablehlo.multiply %59, %60 : tensor<2x16xf32>
    %62 = stablehlo.multiply %48, %61 : tensor<2x16xf32>
    %cst_27 = stablehlo.constant dense<5.000000e-02> : tensor<f32>
    %63 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %64 = stablehlo.divide %62, %63 : tensor<2x16xf32>
    %65 = call @round(%64) : (tensor<2x16xf32>) -> tensor<2x16xf32>
    %cst_28 = stablehlo.constant dense<-1.000000e+02> : tensor<f32>
    %66 = stablehlo.broadcast_in_dim %cst_28, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %67 = stablehlo.add %65, %66 : tensor<2x16xf32>
    %c_29 = stablehlo.constant dense<-128> : tensor<i32>
    %c_30 = stablehlo.constant dense<127> : tensor<i32>
    %68 = call @clip(%67, %c_29, %c_30) : (tensor<2x16xf32>, tensor<i32>, tensor<i32>) -> tensor<2x16xf32>
    %69 = stablehlo.convert %68 : (tensor<2x16xf32>) -> tensor<2x16xi8>
    %70 = stablehlo.convert %69 : (tensor<2x16xi8>) -> tensor<2x16xf32>
    %cst_31 = stablehlo.constant dense<-1.000000e+02> : tensor<f32>
    %71 = stablehlo.broadcast_in_dim %cst_31, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %72 = stablehlo.subtract %70, %71 : tensor<2x16xf32>
    %cst_32 = stablehlo.constant dense<5.000000e-02> : tensor<f32>
    %73 = stablehlo.broadcast_in_dim %cst_32, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %74 = stablehlo.multiply %72, %73 : tensor<2x16xf32>
    %75 = stablehlo.slice %74 [0:2, 0:8] : (tensor<2x16xf32>) -> tensor<2x8xf32>
    %76 = stablehlo.slice %74 [0:2, 8:16] : (tensor<2x16xf32>) -> tensor<2x8xf32>
    %77 = stablehlo.concatenate %76, %75, dim = 1 : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x16xf32>
    %cst_33 = stablehlo.constant dense<5.000000e-02> : tensor<f32>
    %78 = stablehlo.broadcast_in_dim %cst_33, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %79 = stablehlo.divide %77, %78 : tensor<2x16xf32>
    %80 = call @round(%79) : (tensor<2x16xf32>) -> tensor<2x16xf32>
    %cst_34 = stablehlo.constant dense<-1.000000e+02> : tensor<f32>
    %81 = stablehlo.broadcast_in_dim %cst_34, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %82 = stablehlo.add %80, %81 : tensor<2x16xf32>
    %c_35 = stablehlo.constant dense<-128> : tensor<i32>
    %c_36 = stablehlo.constant dense<127> : tensor<i32>
    %83 = call @clip(%82, %c_35, %c_36) : (tensor<2x16xf32>, tensor<i32>, tensor<i32>) -> tensor<2x16xf32>
    %84 = stablehlo.convert %83 : (tensor<2x16xf32>) -> tensor<2x16xi8>
    %85 = stablehlo.convert %84 : (tensor<2x16xi8>) -> tensor<2x16xf32>
    %cst_37 = stablehlo.constant dense<-1.000000e+02> : tensor<f32>
    %86 = stablehlo.broadcast_in_dim %cst_37, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %87 = stablehlo.subtract %85, %86 : tensor<2x16xf32>
    %cst_38 = stablehlo.constant dense<5.000000e-02> : tensor<f32>
    %88 = stablehlo.broadcast_in_dim %cst_38, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %89 = stablehlo.multiply %87, %88 : tensor<2x16xf32>
    %cst_39 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %90 = stablehlo.reduce(%89 init: %cst_39) applies stablehlo.add across dimensions = [1] : (tensor<2x16xf32>, tensor<f32>) -> tensor<2xf32>
    %91 = stablehlo.broadcast_in_dim %90, dims = [0] : (tensor<2xf32>) -> tensor<2x1xf32>
    %cst_40 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %92 = stablehlo.broadcast_in_dim %cst_40, dims = [] : (tensor<f32>) -> tensor<2x1xf32>
    %93 = stablehlo.divide %91, %92 : tensor<2x1xf32>
    %94 = stablehlo.broadcast_in_dim %93, dims = [0, 1] : (tensor<2x1xf32>) -> tensor<2x16xf32>
    %95 = stablehlo.subtract %89, %94 : tensor<2x16xf32>
    %96 = stablehlo.multiply %95, %95 : tensor<2x16xf32>
    %cst_41 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %97 = stablehlo.reduce(%96 init: %cst_41) applies stablehlo.add across dimensions = [1] : (tensor<2x16xf32>, tensor<f32>) -> tensor<2xf32>
    %98 = stablehlo.broadcast_in_dim %97, dims = [0] : (tensor<2xf32>) -> tensor<2x1xf32>
    %cst_42 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %99 = stablehlo.broadcast_in_dim %cst_42, dims = [] : (tensor<f32>) -> tensor<2x1xf32>
    %100 = stablehlo.divide %98, %99 : tensor<2x1xf32>
    %101 = stablehlo.broadcast_in_dim %93, dims = [0, 1] : (tensor<2x1xf32>) -> tensor<2x16xf32>
    %102 = stablehlo.subtract %89, %101 : tensor<2x16xf32>
    %cst_43 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %103 = stablehlo.broadcast_in_dim %cst_43, dims = [] : (tensor<f32>) -> tensor<2x1xf32>
    %104 = stablehlo.add %100, %103 : tensor<2x1xf32>
    %105 = stablehlo.sqrt %104 : tensor<2x1xf32>
    %106 = stablehlo.broadcast_in_dim %105, dims = [0, 1] : (tensor<2x1xf32>) -> tensor<2x16xf32>
    %107 = stablehlo.divide %102, %106 : tensor<2x16xf32>
    %cst_44 = stablehlo.constant dense<5.000000e-02> : tensor<f32>
    %108 = stablehlo.broadcast_in_dim %cst_44, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %109 = stablehlo.divide %107, %108 : tensor<2x16xf32>
    %110 = call @round(%109) : (tensor<2x16xf32>) -> tensor<2x16xf32>
    %cst_45 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %111 = stablehlo.broadcast_in_dim %cst_45, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %112 = stablehlo.add %110, %111 : tensor<2x16xf32>
    %c_46 = stablehlo.constant dense<-128> : tensor<i32>
    %c_47 = stablehlo.constant dense<127> : tensor<i32>
    %113 = call @clip(%112, %c_46, %c_47) : (tensor<2x16xf32>, tensor<i32>, tensor<i32>) -> tensor<2x16xf32>
    %114 = stablehlo.convert %113 : (tensor<2x16xf32>) -> tensor<2x16xi8>
    %115 = stablehlo.convert %114 : (tensor<2x16xi8>) -> tensor<2x16xf32>
    %cst_48 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %116 = stablehlo.broadcast_in_dim %cst_48, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %117 = stablehlo.subtract %115, %116 : tensor<2x16xf32>
    %cst_49 = stablehlo.constant dense<5.000000e-02> : tensor<f32>
    %118 = stablehlo.broadcast_in_dim %cst_49, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %119 = stablehlo.multiply %117, %118 : tensor<2x16xf32>
    %120 = stablehlo.reshape %119 : (tensor<2x16xf32>) -> tensor<2x4x4xf32>
    %121 = stablehlo.transpose %120, dims = [1, 0, 2] : (tensor<2x4x4xf32>) -> tensor<4x2x4xf32>
    %122 = stablehlo.dot_general %121, %121, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<4x2x4xf32>, tensor<4x2x4xf32>) -> tensor<4x2x2xf32>
    %cst_50 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %123 = stablehlo.broadcast_in_dim %cst_50, dims = [] : (tensor<f32>) -> tensor<4x2x2xf32>
    %124 = stablehlo.multiply %122, %123 : tensor<4x2x2xf32>
    %cst_51 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %125 = stablehlo.broadcast_in_dim %cst_51, dims = [] : (tensor<f32>) -> tensor<4x2x2xf32>
    %126 = stablehlo.divide %124, %125 : tensor<4x2x2xf32>
    %127 = call @round_0(%126) : (tensor<4x2x2xf32>) -> tensor<4x2x2xf32>
    %cst_52 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %128 = stablehlo.broadcast_in_dim %cst_52, dims = [] : (tensor<f32>) -> tensor<4x2x2xf32>
    %129 = stablehlo.add %127, %128 : tensor<4x2x2xf32>
    %c_53 = stablehlo.constant dense<-128> : tensor<i32>
    %c_54 = stablehlo.constant dense<127> : tensor<i32>
    %130 = call @clip_1(%129, %c_53, %c_54) : (tensor<4x2x2xf32>, tensor<i32>, tensor<i32>) -> tensor<4x2x2xf32>
    %131 = stablehlo.convert %130 : (tensor<4x2x2xf32>) -> tensor<4x2x2xi8>
    %132 = stablehlo.convert %131 : (tensor<4x2x2xi8>) -> tensor<4x2x2xf32>
    %cst_55 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %133 = stablehlo.broadcast_in_dim %cst_55, dims = [] : (tensor<f32>) -> tensor<4x2x2xf32>
    %134 = stablehlo.subtract %132, %133 : tensor<4x2x2xf32>
    %cst_56 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %135 = stablehlo.broadcast_in_dim %cst_56, dims = [] : (tensor<f32>) -> tensor<4x2x2xf32>
    %136 = stablehlo.multiply %134, %135 : tensor<4x2x2xf32>
    %cst_57 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %137 = stablehlo.reduce(%136 init: %cst_57) applies stablehlo.maximum across dimensions = [2] : (tensor<4x2x2xf32>, tensor<f32>) -> tensor<4x2xf32>
    %cst_58 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %138 = stablehlo.broadcast_in_dim %cst_58, dims = [] : (tensor<f32>) -> tensor<4x2xf32>
    %139 = stablehlo.maximum %138, %137 : tensor<4x2xf32>
    %140 = stablehlo.broadcast_in_dim %139, dims = [0, 1] : (tensor<4x2xf32>) -> tensor<4x2x1xf32>
    %141 = stablehlo.broadcast_in_dim %140, dims = [0, 1, 2] : (tensor<4x2x1xf32>) -> tensor<4x2x2xf32>
    %142 = stablehlo.subtract %136, %141 : tensor<4x2x2xf32>
    %143 = stablehlo.exponential %142 : tensor<4x2x2xf32>
    %cst_59 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %144 = stablehlo.reduce(%143 init: %cst_59) applies stablehlo.add across dimensions = [2] : (tensor<4x2x2xf32>, tensor<f32>) -> tensor<4x2xf32>
    %145 = stablehlo.broadcast_in_dim %144, dims = [0, 1] : (tensor<4x2xf32>) -> tensor<4x2x1xf32>
    %146 = stablehlo.broadcast_in_dim %145, dims = [0, 1, 2] : (tensor<4x2x1xf32>) -> tensor<4x2x2xf32>
    %147 = stablehlo.divide %143, %146 : tensor<4x2x2xf32>
    %cst_60 = stablehlo.constant dense<3.906250e-03> : tensor<f32>
    %148 = stablehlo.broadcast_in_dim %cst_60, dims = [] : (tensor<f32>) -> tensor<4x2x2xf32>
    %149 = stablehlo.divide %147, %148 : tensor<4x2x2xf32>
    %150 = call @round_0(%149) : (tensor<4x2x2xf32>) -> tensor<4x2x2xf32>
    %cst_61 = stablehlo.constant dense<-1.280000e+02> : tensor<f32>
    %151 = stablehlo.broadcast_in_dim %cst_61, dims = [] : (tensor<f32>) -> tensor<4x2x2xf32>
    %152 = stablehlo.add %150, %151 : tensor<4x2x2xf32>
    %c_62 = stablehlo.constant dense<-128> : tensor<i32>
    %c_63 = stablehlo.constant dense<127> : tensor<i32>
    %153 = call @clip_1(%152, %c_62, %c_63) : (tensor<4x2x2xf32>, tensor<i32>, tensor<i32>) -> tensor<4x2x2xf32>
    %154 = stablehlo.convert %153 : (tensor<4x2x2xf32>) -> tensor<4x2x2xi8>
    %155 = stablehlo.convert %154 : (tensor<4x2x2xi8>) -> tensor<4x2x2xf32>
    %cst_64 = stablehlo.constant dense<-1.280000e+02> : tensor<f32>
    %156 = stablehlo.broadcast_in_dim %cst_64, dims = [] : (tensor<f32>) -> tensor<4x2x2xf32>
    %157 = stablehlo.subtract %155, %156 : tensor<4x2x2xf32>
    %cst_65 = stablehlo.constant dense<3.906250e-03> : tensor<f32>
    %158 = stablehlo.broadcast_in_dim %cst_65, dims = [] : (tensor<f32>) -> tensor<4x2x2xf32>
    %159 = stablehlo.multiply %157, %158 : tensor<4x2x2xf32>
    %160 = stablehlo.dot_general %159, %121, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x2x2xf32>, tensor<4x2x4xf32>) -> tensor<4x2x4xf32>
    %cst_66 = stablehlo.constant dense<5.000000e-02> : tensor<f32>
    %161 = stablehlo.broadcast_in_dim %cst_66, dims = [] : (tensor<f32>) -> tensor<4x2x4xf32>
    %162 = stablehlo.divide %160, %161 : tensor<4x2x4xf32>
    %163 = call @round_2(%162) : (tensor<4x2x4xf32>) -> tensor<4x2x4xf32>
    %cst_67 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %164 = stablehlo.broadcast_in_dim %cst_67, dims = [] : (tensor<f32>) -> tensor<4x2x4xf32>
    %165 = stablehlo.add %163, %164 : tensor<4x2x4xf32>
    %c_68 = stablehlo.constant dense<-128> : tensor<i32>
    %c_69 = stablehlo.constant dense<127> : tensor<i32>
    %166 = call @clip_3(%165, %c_68, %c_69) : (tensor<4x2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<4x2x4xf32>
    %167 = stablehlo.convert %166 : (tensor<4x2x4xf32>) -> tensor<4x2x4xi8>
    %168 = stablehlo.convert %167 : (tensor<4x2x4xi8>) -> tensor<4x2x4xf32>
    %cst_70 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %169 = stablehlo.broadcast_in_dim %cst_70, dims = [] : (tensor<f32>) -> tensor<4x2x4xf32>
    %170 = stablehlo.subtract %168, %169 : tensor<4x2x4xf32>
    %cst_71 = stablehlo.constant dense<5.000000e-02> : tensor<f32>
    %171 = stablehlo.broadcast_in_dim %cst_71, dims = [] : (tensor<f32>) -> tensor<4x2x4xf32>
    %172 = stablehlo.multiply %170, %171 : tensor<4x2x4xf32>
    return %172 : tensor<4x2x4xf32>
  }
  func.func private @round(%arg0: tensor<2x16xf32>) -> tensor<2x16xf32> {
    %0 = stablehlo.round_nearest_even %arg0 : tensor<2x16xf32>
    return %0 : tensor<2x16xf32>
  }
  func.func private @clip(%arg0: tensor<2x16xf32>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<2x16xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %2 = stablehlo.maximum %1, %arg0 : tensor<2x16xf32>
    %3 = stablehlo.convert %arg2 : (tensor<i32>) -> tensor<f32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %5 = stablehlo.minimum %4, %2 : tensor<2x16xf32>
    return %5 : tensor<2x16xf32>
  }
  func.func private @silu(%arg0: tensor<2x16xf32>) -> tensor<2x16xf32> {
    %0 = stablehlo.negate %arg0 : tensor<2x16xf32>
    %1 = stablehlo.exponential %0 : tensor<2x16xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %3 = stablehlo.add %2, %1 : tensor<2x16xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x16xf32>
    %5 = stablehlo.divide %4, %3 : tensor<2x16xf32>
    %6 = stablehlo.multiply %arg0, %5 : tensor<2x16xf32>
    return %6 : tensor<2x16xf32>
  }
  func.func private @round_0(%arg0: tensor<4x2x2xf32>) -> tensor<4x2x2xf32> {
    %0 = stablehlo.round_nearest_even %arg0 : tensor<4x2x2xf32>
    return %0 : tensor<4x2x2xf32>
  }
  func.func private @clip_1(%arg0: tensor<4x2x2xf32>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<4x2x2xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x2x2xf32>
    %2 = stablehlo.maximum %1, %arg0 : tensor<4x2x2xf32>
    %3 = stablehlo.convert %arg2 : (tensor<i32>) -> tensor<f32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<4x2x2xf32>
    %5 = stablehlo.minimum %4, %2 : tensor<4x2x2xf32>
    return %5 : tensor<4x2x2xf32>
  }
  func.func private @round_2(%arg0: tensor<4x2x4xf32>) -> tensor<4x2x4xf32> {
    %0 = stablehlo.round_nearest_even %arg0 : tensor<4x2x4xf32>
    return %0 : tensor<4x2x4xf32>
  }
  func.func private @clip_3(%arg0: tensor<4x2x4xf32>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<4x2x4xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x2x4xf32>
    %2 = stablehlo.maximum %1, %arg0 : tensor<4x2x4xf32>
    %3 = stablehlo.convert %arg2 : (tensor<i32>) -> tensor<f32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<4x2x4xf32>
    %5 = stablehlo.minimum %4, %2 : tensor<4x2x4xf32>
    return %5 : tensor<4x2x4xf32>
  }
}
