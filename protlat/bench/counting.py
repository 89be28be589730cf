"""Operations and bytes of the matrix products in a piece of work, counted while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

if TYPE_CHECKING:
    from protlat.bench.ceilings import Ceilings

_ATEN = torch.ops.aten


def _attention_flops(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_flop_count(q.shape, k.shape, v.shape))


def _attention_backward_flops(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any
) -> int:
    return int(sdpa_backward_flop_count(grad.shape, q.shape, k.shape, v.shape))


# torch's registry leaves out the fused attention of CPUs.
_FORMULAS = {
    **flop_registry,
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}


@dataclass(frozen=True)
class Product:
    """One matrix product, convolution or fused attention.

    Attributes
    ----------
    flops : int
        A multiply-add is two.
    n_bytes : int
        Of everything that it reads and writes, once each.
    """

    flops: int
    n_bytes: int


@dataclass
class Work:
    """What was counted.

    Attributes
    ----------
    products : list of Product
    """

    products: list[Product] = field(default_factory=list)

    @property
    def flops(self) -> int:
        return sum(product.flops for product in self.products)

    @property
    def n_bytes(self) -> int:
        return sum(product.n_bytes for product in self.products)

    def least_s(self, ceilings: Ceilings) -> float:
        """Seconds below which no program can do it: each product at the ceiling that is nearer to it.

        Element-wise work counts as free, as if all of it were fused into the products beside it.
        """
        return sum(max(p.flops / ceilings.flops, p.n_bytes / ceilings.bandwidth) for p in self.products)


class CountProducts(TorchDispatchMode):
    """Counts every product that runs inside the ``with`` block, in forward and backward passes.

    Operations are those of torch's own registry (``torch.utils.flop_counter``) and the fused attention of CPUs.

    Attributes
    ----------
    work : Work

    Examples
    --------
    >>> import torch
    >>> with CountProducts() as count:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 5)
    >>> count.work.flops, count.work.n_bytes
    (60, 124)
    """

    def __init__(self) -> None:
        super().__init__()
        self.work = Work()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = _FORMULAS.get(func._overloadpacket)
        if formula is None:
            # Under inference_mode composite operations (linear) arrive whole: their parts come back here.
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        if formula is not None:
            tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
            n_bytes = sum(x.numel() * x.element_size() for x in tensors)
            self.work.products.append(Product(int(formula(*args, **kwargs, out_val=out)), n_bytes))
        return out
