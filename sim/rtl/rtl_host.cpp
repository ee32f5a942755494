// The driver of rtl_model.cpp with memory anywhere, a host that writes single bytes of registers, and coverage.

#include "rtl_model.cpp"

#if VM_COVERAGE
#include "verilated_cov.h"

// What was covered since the model was opened goes to a file, in Verilator's format.
EXPORT void weft_coverage(Model* model, const char* path) { model->context.coveragep()->write(path); }
#endif

// Writes those bytes of a register that `strobe` names, with data ahead of the address by `lead` cycles, or behind it.
// `protection` is of both channels from now on. Returns 0 if there is no answer.
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

// What memory has saved up of its bandwidth is spent.
EXPORT void weft_spend(Model* model) { model->tokens = 0; }

// Memory begins at this address of the bus, a multiple of 4096, from now on.
EXPORT void weft_origin(Model* model, uint32_t address) { model->origin = address; }
