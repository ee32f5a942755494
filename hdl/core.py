"""The pipelined core: all units, wired together."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from weft.hdl.bus.axi import AxiManager, axi4_signature
from weft.hdl.control.control import AXI_LITE, Control, connect_parity
from weft.hdl.control.counters import Counters
from weft.hdl.control.descriptors import Descriptors
from weft.hdl.control.fetch import Fetch, ParityCounts, queue_kinds
from weft.hdl.control.semaphores import Dispatcher, Semaphores
from weft.hdl.isa import Queue
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter, ParityMemory
from weft.hdl.lib.arithmetic import INFERRED, Multipliers
from weft.hdl.load.load import LoadUnit
from weft.hdl.matrix.mm import Alignments, MmUnit
from weft.hdl.memory import Accumulator, Scratchpad
from weft.hdl.store import StoreUnit
from weft.hdl.vector.vec import VecUnit


class Core(wiring.Component):
    """Pipelined core of an accelerator.

    Parameters
    ----------
    config : Config
    multipliers : Multipliers
        Multipliers of the target FPGA family.

    Members
    -------
    m_axi_* : AXI4 manager, see `weft.hdl.bus.axi`
        Port to memory.
    s_axi_* : AXI4-Lite subordinate, see `weft.hdl.control.control`
        Port to the registers of `weft.hdl.isa.memmap`.
    irq : Out(1)
        1 from the end of a run until the next start.
    """

    def __init__(self, config: Config, multipliers: Multipliers = INFERRED) -> None:
        multipliers.check(config)
        self.config = config
        self.multipliers = multipliers
        manager = {f"m_axi_{name}": member for name, member in axi4_signature(config).members.items()}
        super().__init__({**manager, **AXI_LITE, "irq": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self.config
        m.submodules.control = control = Control(config)
        m.submodules.fetch = fetch = Fetch(config)
        m.submodules.axi = axi = AxiManager(config)
        m.submodules.scratchpad = scratchpad = Scratchpad(config, readers=4, writers=2)
        m.submodules.accumulator = accumulator = Accumulator(config)
        m.submodules.load = load = LoadUnit(config)
        m.submodules.mm = mm = MmUnit(config, self.multipliers)
        m.submodules.vec = vec = VecUnit(config, self.multipliers)
        m.submodules.store = store = StoreUnit(config)

        self._ports(m, axi, control)
        if not config.descriptors:
            wiring.connect(m, fetch.bus, axi.fetch)
        wiring.connect(m, load.bus, axi.load)
        if not config.descriptors:
            wiring.connect(m, store.bus, axi.store)
        # In order of priority: weights must never wait, and nothing waits for STORE.
        for index, reader in enumerate((mm.b, mm.a, vec.scratchpad, store.scratchpad)):
            wiring.connect(m, reader, scratchpad.read[index])
        for index, writer in enumerate((vec.write, load.scratchpad)):
            wiring.connect(m, writer, scratchpad.write[index])
        wiring.connect(m, mm.c, accumulator.write)
        wiring.connect(m, vec.accumulator, accumulator.read)
        for user in (fetch,) if config.loops else (load, store):
            m.d.comb += user.bases.eq(control.bases)
        if config.softmax:
            self._softmax(m, control, axi, load, mm, vec)

        units: dict[Queue, Any] = {Queue.LOAD: load, Queue.MM: mm, Queue.VEC: vec, Queue.STORE: store}
        # A run of a list starts several programs.
        launch = Signal() if config.descriptors else control.start
        waiting, idle = self._queues(m, control, fetch, units, launch)
        finished: Value = idle
        opcode_error: Value = fetch.error
        if config.descriptors:
            descriptors = self._descriptors(m, control, axi, fetch, store)
            m.d.comb += [descriptors.idle.eq(idle), descriptors.waits.eq(load.stall_memory)]
            m.d.comb += launch.eq(descriptors.launch)
            finished = idle & ~descriptors.busy
            opcode_error = fetch.error | descriptors.error
        m.d.comb += [
            fetch.start.eq(launch),
            fetch.program.eq(control.program),
            fetch.stop.eq(control.stop),
            control.finished.eq(finished),
            axi.clear.eq(control.start),
            control.fault.eq(axi.fault),
            control.bus_error.eq(axi.error),
            control.opcode_error.eq(opcode_error),
        ]
        if config.parity:
            m.submodules.parity = parity = ParityCounts()
            protected: dict[ParityMemory, Any] = {
                ParityMemory.SCRATCHPAD: scratchpad,
                ParityMemory.ACCUMULATOR: accumulator,
                ParityMemory.FETCH: fetch,
            }
            m.d.comb += [parity.wrong[memory].eq(unit.wrong) for memory, unit in protected.items()]
            connect_parity(m, parity, control)
        # Progress for the watchdog: a row into the array, a bus beat, or an access to memory on the chip.
        ports = (load.scratchpad, vec.scratchpad, vec.write, vec.accumulator)
        moves = [mm.row, axi.read_beat, axi.write_beat, *(port.valid & port.ready for port in ports)]
        m.d.comb += control.moves.eq(Cat(moves).any())
        events = {
            Counter.CYCLES: 1,
            Counter.ARRAY_ACTIVE: mm.row,
            Counter.READ_BEATS: axi.read_beat,
            Counter.WRITE_BEATS: axi.write_beat,
            Counter.LOAD_MEMORY: load.stall_memory,
            Counter.LOAD_PORT: load.stall_port,
            Counter.MM_WEIGHTS: mm.stall_weights,
            Counter.MM_PORT: mm.stall_port,
            Counter.VEC_PORT: vec.stall_port,
            Counter.STORE_MEMORY: store.stall_memory,
            Counter.STORE_PORT: store.stall_port,
        }
        for queue, unit in units.items():
            events[Counter[f"{queue.name}_BUSY"]] = unit.busy
            events[Counter[f"{queue.name}_SEMAPHORE"]] = waiting[queue] & ~unit.busy
        self._counters(m, control, mm, events)
        return m

    def _descriptors(
        self, m: Module, control: Control, axi: AxiManager, fetch: Fetch, store: StoreUnit
    ) -> Descriptors:
        # Sits between the bus and fetch and STORE, which are idle between two programs.
        m.submodules.descriptors = descriptors = Descriptors(self.config)
        wiring.connect(m, fetch.bus, descriptors.fetch)
        wiring.connect(m, descriptors.read, axi.fetch)
        wiring.connect(m, store.bus, descriptors.store)
        wiring.connect(m, descriptors.write, axi.store)
        for name in ("taken", "words", "done", "reads"):
            m.d.comb += getattr(control, name).eq(getattr(descriptors, name))
        for name in ("start", "listed", "stop"):
            m.d.comb += getattr(descriptors, name).eq(getattr(control, name))
        m.d.comb += descriptors.address.eq(control.list)
        return descriptors

    def _softmax(
        self, m: Module, control: Control, axi: AxiManager, load: LoadUnit, mm: MmUnit, vec: VecUnit
    ) -> None:
        m.submodules.alignments = alignments = Alignments(self.config)
        wiring.connect(m, load.page, axi.page)
        wiring.connect(m, mm.alignments, alignments.mm)
        wiring.connect(m, vec.alignment_read, alignments.vec)
        wiring.connect(m, vec.alignment_write, alignments.write)
        if not self.config.loops:
            m.d.comb += vec.bases.eq(control.bases)

    def _ports(self, m: Module, axi: AxiManager, control: Control) -> None:
        pairs = [
            (f"m_axi_{name}", member, getattr(axi.axi, name))
            for name, member in axi4_signature(self.config).members.items()
        ]
        pairs += [(name, member, getattr(control, name)) for name, member in AXI_LITE.items()]
        for name, member, inner in pairs:
            outer = getattr(self, name)
            m.d.comb += outer.eq(inner) if member.flow is Out else inner.eq(outer)
        m.d.comb += self.irq.eq(control.irq)

    def _queues(
        self,
        m: Module,
        control: Control,
        fetch: Fetch,
        units: dict[Queue, wiring.Component],
        launch: Signal,
    ) -> tuple[dict[Queue, Signal], Signal]:
        """Add dispatchers and semaphores.

        Returns for each queue whether its next instruction waits for a semaphore, and whether the core is idle.
        """
        m.submodules.semaphores = semaphores = Semaphores()
        m.d.comb += semaphores.clear.eq(launch)
        waiting, quiet = {}, [fetch.idle]
        for queue, kinds in queue_kinds(self.config).items():
            name = queue.name.lower()
            dispatcher = Dispatcher(self.config, kinds)
            m.submodules[f"{name}_queue"] = dispatcher
            wiring.connect(m, getattr(fetch, name), dispatcher.fetched)
            wiring.connect(m, dispatcher.instruction, units[queue].instruction)
            m.d.comb += [
                dispatcher.available.eq(semaphores.available),
                dispatcher.stop.eq(control.stop),
                semaphores.take[queue].eq(dispatcher.take),
                semaphores.give[queue].eq(units[queue].signal),
            ]
            if hasattr(dispatcher, "values"):
                m.d.comb += units[queue].values.eq(dispatcher.values)
            waiting[queue] = dispatcher.waiting
            quiet += [dispatcher.empty, ~units[queue].busy]
        return waiting, Cat(*quiet).all()

    def _counters(self, m: Module, control: Control, mm: MmUnit, events: dict[Counter, Signal]) -> None:
        m.submodules.counters = counters = Counters()
        m.d.comb += [
            counters.clear.eq(control.start),
            counters.enable.eq(control.running),
            counters.row.eq(mm.row),
            counters.write.eq(mm.write),
            control.counter.eq(counters.index),
            control.counter_value.eq(counters.value),
        ]
        m.d.comb += [counters.event[counter].eq(event) for counter, event in events.items()]
