"""Where the tensors and symbols of a kernel are at run time, which all its functions share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.mask_lists import listed_mask
from mugraph.blocks.schedule import Schedule, element_bytes
from mugraph.blocks.statements import MaskTile, Tensor
from mugraph.domains.base import FLOATS, NIBBLES
from mugraph.terms.shape import DataType, Dim, SymDim, TensorType, plain_symbol, product
from rewriter.kernels.text.roles import FunctionRole
from rewriter.kernels.text.thread import NotGenerated
from rewriter.runtime.plan import Argument, Expression

__all__ = ["Places"]


_LISTED = {"spans": DataType.INT32, "blocks": DataType.INT32, "partial": DataType.BOOL, "order": DataType.INT32}
_WHOLE = {"entries": DataType.BOOL}
"""Tables of a stored mask: of one whose list the loop goes along, and of any other."""


_LONGEST = 256
"""Numbers of an expression that the run-time library reads."""


class Places:
    """Arguments of a kernel's functions.

    Attributes:
        kernel: whose arguments these are.
        arguments: by tensor, scratch memory included.
        symbols: as expressions over the inputs' dimensions.
        scratch_bytes: sizes of the scratch buffers.
        tables: element types of the tables of stored masks, by name.
        packed: weights that are packed once, as they are named where they are read, by tensor and parts of a number.
        heights: numbers of rows that are multiplied with these at a time.
        narrow: no float is of more than 16 bits.
        nibbles: tensors of four bits an entry.
        wide: offsets may not fit 32 bits.

    Args:
        tables_before: tables of stored masks that stand between the inputs and those of the kernel's functions.

    Raises:
        NotGenerated: a symbol is no dimension of an input.
    """

    def __init__(self, kernel: Kernel, tables_before: int = 0) -> None:
        types, self.kernel = kernel.tensors, kernel
        self.narrow = all(t.dtype.bitwidth <= 16 for t in types.values() if t.dtype in FLOATS)
        self.nibbles = frozenset(name for name, type_ in types.items() if type_.dtype in NIBBLES)
        self.symbols: dict[str, Expression] = {}
        sums: list[tuple[SymDim, Expression]] = []
        for number, tensor in enumerate(kernel.inputs):
            for axis, dim in enumerate(tensor.type.shape):
                if (name := plain_symbol(dim)) is not None:
                    self.symbols.setdefault(name, Expression.dimension(number, axis))
                elif isinstance(dim, SymDim):
                    sums.append((dim, Expression.dimension(number, axis)))
        self._solve(sums)
        for name in kernel.symbols:
            if name not in self.symbols:
                raise NotGenerated(f"the symbol {name}, which is no dimension of an input")
        self._disagreements = self._compared(kernel)
        self.arguments = {t.name: Argument.input(i) for i, t in enumerate(kernel.inputs)}
        self.arguments |= {t.name: Argument.output(i) for i, t in enumerate(kernel.outputs)}
        self.arguments |= {t.name: Argument.scratch(i) for i, t in enumerate(kernel.scratch)}
        self.scratch_bytes = [
            self.expression(product(t.type.shape) * int(element_bytes(types[t.name].dtype))) for t in kernel.scratch
        ]
        sizes = [product(t.shape) for t in types.values()]
        self.wide = any(not isinstance(size, int) or size >= 1 << 31 for size in sizes)
        self._taken = set(types)
        self.tables: dict[str, DataType] = {}
        self.packed: dict[tuple[str, int], str] = {}
        self.heights: set[int] = set()
        self._first_table = len(kernel.inputs) + tables_before

    def _compared(self, kernel: Kernel) -> list[Expression]:
        """Expressions that are 0 where the inputs' dimensions are what the kernel's types say, and more elsewhere.

        onnxruntime lets inputs of a model differ in a symbol: the nodes may broadcast them, but a kernel would read beyond them.
        """
        told: dict[Dim, list[Expression]] = {}
        for number, tensor in enumerate(kernel.inputs):
            for axis, dim in enumerate(tensor.type.shape):
                if isinstance(dim, SymDim):
                    told.setdefault(dim, []).append(Expression.dimension(number, axis))
        found = []
        for dim, sizes in told.items():
            name = plain_symbol(dim)
            wanted = self.symbols[name] if name is not None else Expression.of(self.expression(dim))
            found += [size.maximum(wanted) - size.minimum(wanted) for size in sizes if size != wanted]
        return found

    def shapes(self, tensors: Sequence[Tensor]) -> list[tuple[Expression | int, ...]]:
        """The shapes of the outputs, which have no value (a division by no positive number) where the inputs do not fit.

        What finds no room in the dimensions of the outputs is not compared.
        """
        left, shapes = list(self._disagreements), list[tuple[Expression | int, ...]]()
        for tensor in tensors:
            dims = list(map(self.expression, tensor.type.shape))
            for axis, dim in enumerate(dims):
                while left and len((size := Expression.of(dim)).code) + len(left[0].code) + 4 <= _LONGEST:
                    dims[axis] = dim = size // (Expression.of(1) - left.pop(0))
            shapes.append(tuple(dims))
        return shapes

    def _solve(self, sums: list[tuple[SymDim, Expression]]) -> None:
        """Finds symbols that dimensions tell as a summand: 1+past tells past."""
        before = -1
        while before != len(self.symbols):
            before = len(self.symbols)
            for dim, size in sums:
                unknown = [name for name in dim.symbols() if name not in self.symbols]
                if len(unknown) != 1:
                    continue
                (name,) = unknown
                alone = ((name, 1),)
                others = {monomial: number for monomial, number in dim.terms if monomial != alone}
                times = dict(dim.terms).get(alone)
                if times == 1 and all(name not in dict(monomial) for monomial in others):
                    self.symbols[name] = size - self.expression(SymDim.make(others))

    def add_tables(self, block: Block, schedule: Schedule) -> dict[str, tuple[str, ...]]:
        """The names of the tables of a block's stored masks, by value (:func:`mugraph.blocks.mask_lists.mask_tables`)."""
        listed, names = listed_mask(block, schedule), dict[str, tuple[str, ...]]()
        for mask in (s for s in block.statements if isinstance(s, MaskTile)):
            kinds = _LISTED if mask is listed else _WHOLE
            names[mask.name] = tuple(self._new(f"{mask.name}_{kind}") for kind in kinds)
            for name, dtype in zip(names[mask.name], kinds.values(), strict=True):
                self.arguments[name] = Argument.input(self._first_table + len(self.tables))
                self.tables[name] = dtype
        return names

    def add_packed(self, tensor: str, parts: int, heights: Iterable[int]) -> str:
        """The name under which functions read what an input is packed to, its numbers in so many parts.

        Args:
            heights: numbers of rows that are multiplied with it at a time.
        """
        self.heights.update(heights)
        if (tensor, parts) not in self.packed:
            name = self._new(f"{tensor}_packed")
            self.arguments[name] = Argument.weights(len(self.packed))
            self.packed[tensor, parts] = name
        return self.packed[tensor, parts]

    def add_scratch(self, wanted: str, size: Expression | int) -> str:
        """The name under which functions have so many bytes of scratch memory of their own."""
        name = self._new(wanted)
        self.arguments[name] = Argument.scratch(len(self.scratch_bytes))
        self.scratch_bytes.append(size)
        return name

    def _new(self, wanted: str) -> str:
        """A name that no tensor has."""
        while wanted in self._taken:
            wanted += "_"
        self._taken.add(wanted)
        return wanted

    def add_functions(self, block: Block, schedule: Schedule) -> tuple[Sequence[FunctionRole], dict[str, Tensor]]:
        """The functions of a block graph, and where its loop is split scratch for the states of its accumulators."""
        if schedule.split == 1:
            return (FunctionRole.WHOLE,), {}
        return (FunctionRole.PART, FunctionRole.COMBINE), self._add_states(block, schedule.split)

    def _add_states(self, block: Block, split: int) -> dict[str, Tensor]:
        """Scratch for the states of a split block's accumulators: [split, axes...] in 32 bits."""
        states = {}
        for accumulator in block.accumulators:
            for name in accumulator.names:
                shape = (split, *(block.sizes[axis] for axis in block.value_axes[name]))
                size = product(shape) * 4
                tensor = self.add_scratch(f"{name}_parts", self.expression(size))
                states[name] = Tensor(tensor, TensorType(DataType.FLOAT, shape))
                self.wide |= not isinstance(size, int) or size >= 1 << 33
        return states

    def expression(self, dim: Dim) -> Expression | int:
        """A size as the runtime computes it."""
        if isinstance(dim, int):
            return dim
        total: Expression | None = None
        for monomial, coefficient in dim.terms:
            part = Expression.of(coefficient)
            for name, power in monomial:
                for _ in range(power):
                    part = part * self.symbols[name]
            total = part if total is None else total + part
        assert total is not None
        return total
