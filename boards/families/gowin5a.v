/* Simulation models of Gowin Arora V cells that Yosys lacks, limited to the features that weft uses. */

/* Signed multiplier. Registers use CLK[0] and CE[0], or are bypassed. From Gowin's "Arora V DSP User Guide", UG305. */
module MULT12X12 (
  output [23:0] DOUT, input [11:0] A, input [11:0] B, input [1:0] CLK, input [1:0] CE, input [1:0] RESET
);
  parameter AREG_CLK = "BYPASS", AREG_CE = "CE0", AREG_RESET = "RESET0";
  parameter BREG_CLK = "BYPASS", BREG_CE = "CE0", BREG_RESET = "RESET0";
  parameter PREG_CLK = "BYPASS", PREG_CE = "CE0", PREG_RESET = "RESET0";
  parameter OREG_CLK = "BYPASS", OREG_CE = "CE0", OREG_RESET = "RESET0";
  parameter MULT_RESET_MODE = "SYNC";

  reg signed [11:0] a_held, b_held;
  reg signed [23:0] pipeline, result;
  wire signed [11:0] a = AREG_CLK == "CLK0" ? a_held : A;
  wire signed [11:0] b = BREG_CLK == "CLK0" ? b_held : B;
  wire signed [23:0] product = a * b;
  wire signed [23:0] piped = PREG_CLK == "CLK0" ? pipeline : product;
  assign DOUT = OREG_CLK == "CLK0" ? result : piped;

  always @(posedge CLK[0])
    if (RESET[0]) begin
      a_held <= 0; b_held <= 0; pipeline <= 0; result <= 0;
    end else if (CE[0]) begin
      a_held <= A; b_held <= B; pipeline <= product; result <= piped;
    end
endmodule
