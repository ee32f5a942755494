// Extends rtl_model.cpp by a movable memory, writes of single bytes of registers, and coverage.

#include "rtl_model.cpp"

#if VM_COVERAGE
#include "verilated_cov.h"

// Writes the coverage since the model was opened to a file in Verilator's format.
EXPORT void weft_coverage(Model* model, const char* path) { model->context.coveragep()->write(path); }
#endif

// Writes the bytes of a register that `strobe` selects. Data is sent `lead` cycles before the address, or after it if
// negative. `protection` applies to both channels from now on. Returns 0 if the core does not answer.
EXPORT int weft_write_bytes(Model* model, uint32_t address, uint32_t value, uint32_t strobe, uint32_t protection,
                            int lead) {
    Vtop& t = *model->top;
    bool address_sent = false, data_sent = false, answered = false;
    t.s_axi_awaddr = address;
    t.s_axi_wdata = value;
    t.s_axi_wstrb = strobe;
    t.s_axi_awprot = t.s_axi_arprot = protection;
    for (int i = 0; i < REGISTER_TIMEOUT && !answered; i++) {
        t.s_axi_awvalid = !address_sent && i >= lead;
        t.s_axi_wvalid = !data_sent && i >= -lead;
        t.s_axi_bready = i > 20 || !model->stalls();
        model->drive();
        model->edge(0);
        model->sample();
        address_sent |= t.s_axi_awvalid && t.s_axi_awready;
        data_sent |= t.s_axi_wvalid && t.s_axi_wready;
        answered = t.s_axi_bvalid && t.s_axi_bready;
        model->edge(1);
        model->cycles++;
    }
    t.s_axi_awvalid = t.s_axi_wvalid = t.s_axi_bready = 0;
    return answered;
}

// Empties the token bucket of a memory of limited bandwidth.
EXPORT void weft_spend(Model* model) { model->tokens = 0; }

// Moves memory to this bus address, a multiple of 4096.
EXPORT void weft_origin(Model* model, uint32_t address) { model->origin = address; }
