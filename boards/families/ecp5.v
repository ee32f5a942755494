/* Simulation models of ECP5 cells that Yosys lacks, limited to the features that weft uses. */

/* Multiplier without cascades and third operand. Registers use CLK0, CE0 and RST0, or are bypassed.
   From Lattice's "ECP5 and ECP5-5G sysDSP Usage Guide", FPGA-TN-02205. */
module MULT18X18D (
  input A17, A16, A15, A14, A13, A12, A11, A10, A9, A8, A7, A6, A5, A4, A3, A2, A1, A0,
  input B17, B16, B15, B14, B13, B12, B11, B10, B9, B8, B7, B6, B5, B4, B3, B2, B1, B0,
  input C17, C16, C15, C14, C13, C12, C11, C10, C9, C8, C7, C6, C5, C4, C3, C2, C1, C0,
  input SIGNEDA, SIGNEDB, SOURCEA, SOURCEB,
  input CLK3, CLK2, CLK1, CLK0, CE3, CE2, CE1, CE0, RST3, RST2, RST1, RST0,
  output P35, P34, P33, P32, P31, P30, P29, P28, P27, P26, P25, P24, P23, P22, P21, P20, P19, P18, P17, P16,
  P15, P14, P13, P12, P11, P10, P9, P8, P7, P6, P5, P4, P3, P2, P1, P0
);
  parameter REG_INPUTA_CLK = "NONE", REG_INPUTA_CE = "CE0", REG_INPUTA_RST = "RST0";
  parameter REG_INPUTB_CLK = "NONE", REG_INPUTB_CE = "CE0", REG_INPUTB_RST = "RST0";
  parameter REG_PIPELINE_CLK = "NONE", REG_PIPELINE_CE = "CE0", REG_PIPELINE_RST = "RST0";
  parameter REG_OUTPUT_CLK = "NONE", REG_OUTPUT_CE = "CE0", REG_OUTPUT_RST = "RST0";

  // Operands are extended by a sign bit, so that one signed multiplication handles signed and unsigned operands.
  wire signed [18:0] a = {
    SIGNEDA & A17, A17, A16, A15, A14, A13, A12, A11, A10, A9, A8, A7, A6, A5, A4, A3, A2, A1, A0
  };
  wire signed [18:0] b = {
    SIGNEDB & B17, B17, B16, B15, B14, B13, B12, B11, B10, B9, B8, B7, B6, B5, B4, B3, B2, B1, B0
  };
  reg signed [18:0] a_held, b_held;
  reg signed [37:0] pipeline, result;
  wire signed [18:0] a_used = REG_INPUTA_CLK == "CLK0" ? a_held : a;
  wire signed [18:0] b_used = REG_INPUTB_CLK == "CLK0" ? b_held : b;
  wire signed [37:0] product = a_used * b_used;
  wire signed [37:0] piped = REG_PIPELINE_CLK == "CLK0" ? pipeline : product;
  wire signed [37:0] shown = REG_OUTPUT_CLK == "CLK0" ? result : piped;
  assign {
    P35, P34, P33, P32, P31, P30, P29, P28, P27, P26, P25, P24, P23, P22, P21, P20, P19, P18, P17, P16, P15,
    P14, P13, P12, P11, P10, P9, P8, P7, P6, P5, P4, P3, P2, P1, P0
  } = shown[35:0];

  always @(posedge CLK0)
    if (RST0) begin
      a_held <= 0; b_held <= 0; pipeline <= 0; result <= 0;
    end else if (CE0) begin
      a_held <= a; b_held <= b; pipeline <= product; result <= piped;
    end
endmodule

/* A block RAM as Yosys maps it: no output registers, synchronous reset, contents unspecified at first (INITVAL is
   not looked at). Addresses count bits; a width of 36 takes the data pins of both ports. From Lattice's "ECP5 and
   ECP5-5G Memory Usage Guide", FPGA-TN-02204. */
module DP16KD (
  input DIA17, DIA16, DIA15, DIA14, DIA13, DIA12, DIA11, DIA10, DIA9, DIA8, DIA7, DIA6, DIA5, DIA4, DIA3, DIA2,
  DIA1, DIA0,
  input ADA13, ADA12, ADA11, ADA10, ADA9, ADA8, ADA7, ADA6, ADA5, ADA4, ADA3, ADA2, ADA1, ADA0,
  input CEA, OCEA, CLKA, WEA, RSTA, CSA2, CSA1, CSA0,
  output DOA17, DOA16, DOA15, DOA14, DOA13, DOA12, DOA11, DOA10, DOA9, DOA8, DOA7, DOA6, DOA5, DOA4, DOA3, DOA2,
  DOA1, DOA0,
  input DIB17, DIB16, DIB15, DIB14, DIB13, DIB12, DIB11, DIB10, DIB9, DIB8, DIB7, DIB6, DIB5, DIB4, DIB3, DIB2,
  DIB1, DIB0,
  input ADB13, ADB12, ADB11, ADB10, ADB9, ADB8, ADB7, ADB6, ADB5, ADB4, ADB3, ADB2, ADB1, ADB0,
  input CEB, OCEB, CLKB, WEB, RSTB, CSB2, CSB1, CSB0,
  output DOB17, DOB16, DOB15, DOB14, DOB13, DOB12, DOB11, DOB10, DOB9, DOB8, DOB7, DOB6, DOB5, DOB4, DOB3, DOB2,
  DOB1, DOB0
);
  parameter DATA_WIDTH_A = 18, DATA_WIDTH_B = 18, REGMODE_A = "NOREG", REGMODE_B = "NOREG";
  parameter RESETMODE = "SYNC", ASYNC_RESET_RELEASE = "SYNC", CSDECODE_A = "0b000", CSDECODE_B = "0b000";
  parameter CLKAMUX = "CLKA", CLKBMUX = "CLKB", WRITEMODE_A = "NORMAL", WRITEMODE_B = "NORMAL", GSR = "AUTO";
  parameter [319:0] INITVAL_00 = 0, INITVAL_01 = 0, INITVAL_02 = 0, INITVAL_03 = 0, INITVAL_04 = 0, INITVAL_05 = 0;
  parameter [319:0] INITVAL_06 = 0, INITVAL_07 = 0, INITVAL_08 = 0, INITVAL_09 = 0, INITVAL_0A = 0, INITVAL_0B = 0;
  parameter [319:0] INITVAL_0C = 0, INITVAL_0D = 0, INITVAL_0E = 0, INITVAL_0F = 0, INITVAL_10 = 0, INITVAL_11 = 0;
  parameter [319:0] INITVAL_12 = 0, INITVAL_13 = 0, INITVAL_14 = 0, INITVAL_15 = 0, INITVAL_16 = 0, INITVAL_17 = 0;
  parameter [319:0] INITVAL_18 = 0, INITVAL_19 = 0, INITVAL_1A = 0, INITVAL_1B = 0, INITVAL_1C = 0, INITVAL_1D = 0;
  parameter [319:0] INITVAL_1E = 0, INITVAL_1F = 0, INITVAL_20 = 0, INITVAL_21 = 0, INITVAL_22 = 0, INITVAL_23 = 0;
  parameter [319:0] INITVAL_24 = 0, INITVAL_25 = 0, INITVAL_26 = 0, INITVAL_27 = 0, INITVAL_28 = 0, INITVAL_29 = 0;
  parameter [319:0] INITVAL_2A = 0, INITVAL_2B = 0, INITVAL_2C = 0, INITVAL_2D = 0, INITVAL_2E = 0, INITVAL_2F = 0;
  parameter [319:0] INITVAL_30 = 0, INITVAL_31 = 0, INITVAL_32 = 0, INITVAL_33 = 0, INITVAL_34 = 0, INITVAL_35 = 0;
  parameter [319:0] INITVAL_36 = 0, INITVAL_37 = 0, INITVAL_38 = 0, INITVAL_39 = 0, INITVAL_3A = 0, INITVAL_3B = 0;
  parameter [319:0] INITVAL_3C = 0, INITVAL_3D = 0, INITVAL_3E = 0, INITVAL_3F = 0;

  reg [35:0] memory [0:511];

  // Position of an address in its word of 36 bits, which has bytes of 9 bits; narrow words use 8 of them.
  function [5:0] place(input [4:0] address, input integer width);
    place = width == 36 ? 0 : width == 18 ? 18 * address[4]
          : 9 * address[4:3] + (width == 9 ? 0 : width == 4 ? {address[2], 2'b00}
          : width == 2 ? {address[2:1], 1'b0} : address[2:0]);
  endfunction

  function [35:0] mask(input [4:0] address, input integer width);
    mask = width == 36 ? {{9{address[3]}}, {9{address[2]}}, {9{address[1]}}, {9{address[0]}}}
         : width == 18 ? {18'd0, {9{address[1]}}, {9{address[0]}}}
         : (36'd1 << width) - 36'd1;
  endfunction

  wire [17:0] low = {
    DIA17, DIA16, DIA15, DIA14, DIA13, DIA12, DIA11, DIA10, DIA9, DIA8, DIA7, DIA6, DIA5, DIA4, DIA3, DIA2,
    DIA1, DIA0
  };
  wire [17:0] high = {
    DIB17, DIB16, DIB15, DIB14, DIB13, DIB12, DIB11, DIB10, DIB9, DIB8, DIB7, DIB6, DIB5, DIB4, DIB3, DIB2,
    DIB1, DIB0
  };
  wire [13:0] address_a = {
    ADA13, ADA12, ADA11, ADA10, ADA9, ADA8, ADA7, ADA6, ADA5, ADA4, ADA3, ADA2, ADA1, ADA0
  };
  wire [13:0] address_b = {
    ADB13, ADB12, ADB11, ADB10, ADB9, ADB8, ADB7, ADB6, ADB5, ADB4, ADB3, ADB2, ADB1, ADB0
  };
  wire [5:0] place_a = place(address_a[4:0], DATA_WIDTH_A), place_b = place(address_b[4:0], DATA_WIDTH_B);
  wire [35:0] written_a = {DATA_WIDTH_A == 36 ? high : 18'd0, low} << place_a;
  wire [35:0] written_b = {18'd0, high} << place_b;
  wire [35:0] mask_a = WEA ? mask(address_a[4:0], DATA_WIDTH_A) << place_a : 36'd0;
  wire [35:0] mask_b = WEB ? mask(address_b[4:0], DATA_WIDTH_B) << place_b : 36'd0;
  wire [35:0] old_a = memory[address_a[13:5]], old_b = memory[address_b[13:5]];
  wire [35:0] new_a = old_a & ~mask_a | written_a & mask_a, new_b = old_b & ~mask_b | written_b & mask_b;
  wire [35:0] chosen_a = (WRITEMODE_A == "WRITETHROUGH" ? new_a : old_a) >> place_a;
  wire [35:0] chosen_b = (WRITEMODE_B == "WRITETHROUGH" ? new_b : old_b) >> place_b;
  reg [17:0] read_a;
  reg [35:0] read_b;
  always @(posedge CLKA) begin
    if (CEA & WEA) memory[address_a[13:5]] <= new_a;
    if (RSTA) read_a <= 0;
    else if (CEA & (~WEA | WRITEMODE_A != "NORMAL")) read_a <= chosen_a[17:0];
  end
  always @(posedge CLKB) begin
    if (CEB & WEB) memory[address_b[13:5]] <= new_b;
    if (RSTB) read_b <= 0;
    else if (CEB & (~WEB | WRITEMODE_B != "NORMAL")) read_b <= chosen_b;
  end
  assign {
    DOA17, DOA16, DOA15, DOA14, DOA13, DOA12, DOA11, DOA10, DOA9, DOA8, DOA7, DOA6, DOA5, DOA4, DOA3, DOA2,
    DOA1, DOA0
  } = DATA_WIDTH_B == 36 ? read_b[17:0] : read_a;
  assign {
    DOB17, DOB16, DOB15, DOB14, DOB13, DOB12, DOB11, DOB10, DOB9, DOB8, DOB7, DOB6, DOB5, DOB4, DOB3, DOB2,
    DOB1, DOB0
  } = DATA_WIDTH_B == 36 ? read_b[35:18] : read_b[17:0];
endmodule
