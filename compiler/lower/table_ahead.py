"""The table of powers of two for a softmax, filled while the first operands of a program are on their way."""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.ir.graph import Attention, DeviceOp, Softmax
from weft.compiler.lower.attention import table_tasks
from weft.compiler.machine.emit import Emitter
from weft.compiler.machine.tasks import Tasks


def table_ahead(ops: Sequence[DeviceOp], emit: Emitter) -> Tasks:
    """The tasks that fill the table at the start of a program, when the vector unit has nothing to do yet; none if the
    first operator that needs it is an attention, which fills it while the array works, or the program's first one.
    """
    config = emit.config
    user = next((op for op in ops if isinstance(op, Softmax | Attention)), None)
    worth = isinstance(user, Softmax) and user is not ops[0]
    place = config.scratchpad_size - config.table_depth // config.n
    return Tasks.of(table_tasks(emit, place) if worth else (), config)
