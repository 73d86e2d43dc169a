"""`Embedding` and `EmbeddingBag` of PyTorch with tables on the ps replicas, and other layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional as F

from elasticdl.errors import ModelError
from elasticdl.layers.life_cycle import Admission, Expiry, admission_of, expiry_of
from elasticdl.layers.row_statistics import RowStatistics, statistics_of
from elasticdl.packages.frameworks.lookup import (
    current_count,
    current_lookup,
    is_served,
)
from elasticdl.packages.frameworks.plain_rows import PlainRows
from elasticdl.packages.frameworks.rates import require_rate
from elasticdl.packages.frameworks.towers import towers_are_elsewhere
from elasticdl.packages.torch.table_parameter import Distribution, TableParameter

WIRE_DTYPES = ("float32", "float16", "bfloat16")


class RowInitializer(Protocol):
    """The distribution of new rows, with the fields of `elasticdl.Initializer`."""

    kind: str
    params: Mapping[str, float]


class StatisticsTable(nn.Module):  # type: ignore[misc]  # torch has no types here
    """The table of the statistics of an embedding layer; only that layer calls it.

    Attributes:
        said: The statistics that are kept.
        expiry_of_rows: The rule by which the rows of the ids are removed.
    """

    num_embeddings = padding_idx = None

    def __init__(self, said: RowStatistics, expiry: Expiry | None, what: str) -> None:
        super().__init__()
        self.said, self.expiry_of_rows = said, expiry
        self.embedding_dim = said.table_dim
        self.weight = None
        if current_lookup() is not None:
            zeros: Distribution = ("constant", {"value": 0.0})
            self.weight = TableParameter.of(f"the statistics of {what}", 0, said.table_dim, zeros)

    def read(
        self, ids: torch.Tensor, records: torch.Tensor | None, weights: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Look up the statistics of ids; return them if they are features.

        Args:
            ids: The ids.
            records: The record of each id; None: the first axis of the ids.
            weights: The weight of each id; None: all weights are 1.
        """
        num_features = self.said.num_features
        if is_served() and not num_features:
            return None
        lookup, count = current_lookup(), current_count()
        if lookup is None:
            return torch.zeros(*ids.shape, num_features) if num_features else None
        if count is not None:
            count(records, weights)
        rows: torch.Tensor = lookup(self, ids)
        return rows[..., :num_features].detach() if num_features else None


class _Table:
    """The common part of both layers. In a plain session they are PyTorch's own layers."""

    num_embeddings: int | None
    embedding_dim: int
    padding_idx: int | None
    weight: torch.Tensor

    def _on_ps(
        self,
        what: str,
        num_embeddings: int | None,
        embedding_dim: int,
        max_norm: float | None,
        scale_grad_by_freq: bool,
        dtype: torch.dtype | None,
        wire_dtype: str,
        admission: Admission | None,
        expiry: Expiry | None,
        initializer: RowInitializer | None,
        name: str | None,
        statistics: RowStatistics | None,
    ) -> None:
        """Check and keep the settings of the table."""
        if max_norm is not None:
            raise ModelError(
                f"{what}: max_norm={max_norm} is not applied: it changes rows whenever they are "
                "read, and several workers read them at the same time; leave it out, and use the "
                "optimizer's weight_decay against large rows"
            )
        if scale_grad_by_freq:
            raise ModelError(
                f"{what}: scale_grad_by_freq is not applied: the frequency of an id in the "
                "minibatch of one worker says little of the job; leave it out"
            )
        if dtype not in (None, torch.float32):
            raise ModelError(
                f"{what}: dtype={dtype} is not kept: tables are float32; use "
                'wire_dtype="float16" or "bfloat16" to send less, and cast what the layer returns'
            )
        for argument, value in (
            ("num_embeddings", num_embeddings),
            ("embedding_dim", embedding_dim),
        ):
            if argument == "num_embeddings" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise ModelError(f"{what}: {argument} must be a positive integer, not {value!r}")
        if wire_dtype not in WIRE_DTYPES:
            raise ModelError(
                f"{what}: wire_dtype must be one of {', '.join(WIRE_DTYPES)}, not {wire_dtype!r}"
            )
        self.wire_dtype = wire_dtype
        self.admission = admission_of(admission, what)
        self.expiry = expiry_of(expiry, what)
        self.table_name = name
        said = statistics_of(statistics, what)
        self.statistics = None if said is None else StatisticsTable(said, self.expiry, what)
        self._initializer: Distribution = ("normal", {"mean": 0.0, "stddev": 1.0})
        if initializer is not None:
            self._initializer = (initializer.kind, dict(initializer.params))
        self._plain_rows: PlainRows | None = None
        self._is_of_job = current_lookup() is not None

    def _placed_weight(self, what: str, given: torch.Tensor | None, freeze: bool) -> TableParameter:
        rows = self.num_embeddings or 0
        weight = TableParameter.of(
            what, rows, self.embedding_dim, self._initializer, self.padding_idx
        )
        if given is not None:
            weight._begin_with(torch.Tensor.copy_, "copy_", (weight, given), {})
        weight.requires_grad_(not freeze)
        return weight

    def _rows(self, ids: torch.Tensor, padding_idx: int | None) -> torch.Tensor:
        """Return the rows of ids of any shape; the rows of padding are zero."""
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise ModelError(
                f"{type(self).__name__}: ids must be integers, found a tensor of {ids.dtype}"
            )
        ids = ids.to(torch.int64)
        lookup = current_lookup()
        if lookup is not None:
            rows: torch.Tensor = lookup(self, ids)
        # The rows exist only while a backend calls the model.
        elif self._is_of_job:
            raise ModelError(
                f"{self.table_name or type(self).__name__}: the layer is called outside of the "
                "model's own call, where its rows are at hand: call it in forward, not in loss() "
                "or a hook, and not in what torch.utils.checkpoint computes again"
            )
        elif isinstance(self.weight, TableParameter):
            rows = self._created_here().pull(ids.detach().cpu().numpy())
            rows = torch.from_numpy(rows).to(ids.device)
        else:
            rows = F.embedding(ids, self.weight)
        if padding_idx is not None:
            rows = rows.masked_fill((ids == padding_idx).unsqueeze(-1), 0.0)
        return rows

    def _with_features(
        self,
        rows: torch.Tensor,
        ids: torch.Tensor,
        padding_idx: int | None,
        records: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return rows, followed by the statistics that are features.

        Args:
            rows: The rows of ids.
            ids: The ids.
            padding_idx: An id that is not counted.
            records: The record of each id; None: the first axis of the ids.
        """
        if self.statistics is None:
            return rows
        ids = ids.to(torch.int64)
        weights = None if padding_idx is None else (ids != padding_idx).to(torch.float32)
        features = self.statistics.read(ids, records, weights)
        if features is None:
            return rows
        if padding_idx is not None:
            features = features.masked_fill((ids == padding_idx).unsqueeze(-1), 0.0)
        return torch.cat([rows, features.to(rows)], -1)

    def _created_here(self) -> PlainRows:
        """Return the rows of a plain session without a number of rows."""
        if self._plain_rows is None:
            name, initializer = self.table_name or "embedding", self.weight.table_initializer
            self._plain_rows = PlainRows(name, self.embedding_dim, self.num_embeddings, initializer)
        return self._plain_rows


class Embedding(_Table, nn.Embedding):  # type: ignore[misc]  # torch has no types here
    """`torch.nn.Embedding` with its table on the ps replicas, and ids of up to 63 bits.

    In a job no process of a worker holds the table: the layer's `weight` is only a shape, and the
    rows of a minibatch are pulled when the layer is called. In a plain Python session the layer is
    `torch.nn.Embedding`. Without `num_embeddings`, rows are then created in this process when first
    used, with the initial values of a job with seed 0, and are *not trained*.

    Args:
        num_embeddings: The number of rows, against which ids are checked; None: an id is any number
            from 0 to 2**63 - 1, and a row is created when its id is first trained.
        embedding_dim: The width of a row.
        padding_idx: An id that gives zeros, and is not trained.
        max_norm: Refused.
        norm_type: Not used.
        scale_grad_by_freq: Refused.
        sparse: No effect: gradients always have only the rows of a minibatch.
        _weight: The first rows.
        _freeze: Whether the rows stay unchanged.
        device: Not used.
        dtype: float32.
        name: The table's name in checkpoints and exports; default: the layer's place in the model.
        initializer: An `elasticdl.Initializer`; default: the standard normal distribution, or the
            function of `torch.nn.init` that the model calls.
        wire_dtype: The type of rows and gradients on the network: "float32", "float16" or
            "bfloat16".
        admission: The rule by which an id gets a row: `CountAdmission`, `ProbabilityAdmission` or
            `StatisticAdmission`; None: each id gets one.
        expiry: The rule by which rows are removed, an `Expiry`.
        statistics: Keep decayed sums of each id beside its row, by `RowStatistics`. A plain session
            keeps none, and reads zeros.
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: torch.Tensor | None = None,
        _freeze: bool = False,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        name: str | None = None,
        initializer: RowInitializer | None = None,
        wire_dtype: str = "float32",
        admission: Admission | None = None,
        expiry: Expiry | None = None,
        statistics: RowStatistics | None = None,
    ) -> None:
        nn.Module.__init__(self)
        what = f"Embedding {name!r}" if name else f"Embedding({num_embeddings}, {embedding_dim})"
        self._on_ps(
            what, num_embeddings, embedding_dim, max_norm, scale_grad_by_freq, dtype,
            wire_dtype, admission, expiry, initializer, name, statistics,
        )  # fmt: skip
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = _padding(what, padding_idx, num_embeddings)
        self.max_norm, self.norm_type = None, norm_type
        self.scale_grad_by_freq, self.sparse = False, sparse
        if current_lookup() is not None or num_embeddings is None:
            self.weight = self._placed_weight(what, _weight, _freeze)
        else:
            self.weight = _plain_weight(self, _weight, _freeze)

    def reset_parameters(self) -> None:
        """Set the initial values again."""
        _fill(self.weight, self._initializer)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the rows of `input`, shape `input.shape + (embedding_dim,)`."""
        return self._with_features(self._rows(input, self.padding_idx), input, self.padding_idx)


class EmbeddingBag(_Table, nn.EmbeddingBag):  # type: ignore[misc]  # torch has no types here
    """`torch.nn.EmbeddingBag` with its table on the ps replicas; see `Embedding`."""

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: torch.Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        name: str | None = None,
        initializer: RowInitializer | None = None,
        wire_dtype: str = "float32",
        admission: Admission | None = None,
        expiry: Expiry | None = None,
        statistics: RowStatistics | None = None,
    ) -> None:
        nn.Module.__init__(self)
        dims = f"{num_embeddings}, {embedding_dim}"
        what = f"EmbeddingBag {name!r}" if name else f"EmbeddingBag({dims})"
        self._on_ps(
            what, num_embeddings, embedding_dim, max_norm, scale_grad_by_freq, dtype,
            wire_dtype, admission, expiry, initializer, name, statistics,
        )  # fmt: skip
        if mode not in ("sum", "mean", "max"):
            raise ModelError(f"{what}: mode must be 'sum', 'mean' or 'max', not {mode!r}")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = _padding(what, padding_idx, num_embeddings)
        self.max_norm, self.norm_type, self.mode = None, norm_type, mode
        self.scale_grad_by_freq, self.sparse = False, sparse
        self.include_last_offset = include_last_offset
        if current_lookup() is not None or num_embeddings is None:
            self.weight = self._placed_weight(what, _weight, False)
        else:
            self.weight = _plain_weight(self, _weight, False)

    def reset_parameters(self) -> None:
        """Set the initial values again."""
        _fill(self.weight, self._initializer)

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return one row for each bag; the arguments are those of `torch.nn.EmbeddingBag`."""
        if input.dim() == 2 and offsets is None:
            return self._equal_bags(input, per_sample_weights)
        rows = self._rows(input, None)
        records = None if offsets is None else _bags(input, offsets)
        rows = self._with_features(rows, input, self.padding_idx, records)
        # Each occurrence of an id has its own row, so bags are made of places and not of ids.
        rows = rows.reshape(-1, rows.shape[-1])
        places = torch.arange(1, rows.shape[0] + 1, device=rows.device).view(input.shape)
        rows = torch.cat([rows.new_zeros(1, rows.shape[-1]), rows])  # of the padding
        if self.padding_idx is not None:
            places = places.masked_fill(input == self.padding_idx, 0)
        if offsets is not None:
            offsets = offsets.to(torch.int64)
        return F.embedding_bag(
            places,
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=0,
        )

    def _equal_bags(self, ids: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """Return one row for each row of ids, shape (bags, ids of one)."""
        if weights is not None and (self.mode != "sum" or weights.shape != ids.shape):
            raise ModelError(
                "EmbeddingBag: per_sample_weights are for mode='sum', one for each id; found mode="
                f"{self.mode!r}, ids {list(ids.shape)} and weights {list(weights.shape)}"
            )
        rows = self._with_features(self._rows(ids, self.padding_idx), ids, self.padding_idx)
        if weights is not None:
            rows = rows * weights.unsqueeze(-1)
        if self.mode == "sum":
            return rows.sum(1)
        if self.padding_idx is None:
            return rows.mean(1) if self.mode == "mean" else rows.max(1).values
        is_padding = ids == self.padding_idx
        if self.mode == "mean":
            # A bag of padding alone would divide by zero.
            return rows.sum(1) / (~is_padding).sum(1, keepdim=True).clamp(min=1)
        # Padding must lose against each value, and a bag of padding alone gives zeros.
        rows = rows.masked_fill(is_padding.unsqueeze(-1), -torch.inf).max(1).values
        return rows.masked_fill(is_padding.all(1, keepdim=True), 0.0)


class Remote(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Returns the outputs of a tower for ids; the tower may be computed elsewhere.

    A tower is a module that takes ids of shape `(n,)`, int64, and gives `(n, dim)`. It computes
    each id by itself: the output of an id must not depend on other ids. Model servers compute the
    tower (`--num_model_servers`), each id once for all workers that ask at the same time. If there
    are none, or in a plain Python session, this process computes it.

    Args:
        tower: The module.
        name: The name in messages; default: "tower".
    """

    num_embeddings = None  # ids are any number

    def __init__(self, tower: nn.Module, name: str = "tower") -> None:
        super().__init__()
        if not isinstance(tower, nn.Module):
            raise ModelError(f"Remote: expected a torch.nn.Module that takes ids, found {tower!r}")
        self.tower = tower
        self.name = name
        self.source: int | None = None  # where a job looks its outputs up, if it does
        self.embedding_dim = 0  # of the outputs, then

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the outputs of ids of any shape, `ids.shape + (dim,)`."""
        if input.is_floating_point() or input.is_complex() or input.dtype == torch.bool:
            raise ModelError(f"Remote {self.name!r}: ids must be integers, found {input.dtype}")
        ids = input.to(torch.int64)
        lookup = current_lookup()
        if lookup is not None and towers_are_elsewhere():
            rows: torch.Tensor = lookup(self, ids)
            return rows
        outputs = self.of_ids(ids.reshape(-1))
        return outputs.reshape(*ids.shape, outputs.shape[1])

    def of_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the tower for ids of shape (n,)."""
        outputs = self.tower(ids)
        is_tensor = isinstance(outputs, torch.Tensor)
        if not is_tensor or outputs.dim() != 2 or len(outputs) != len(ids):
            found = list(outputs.shape) if is_tensor else type(outputs).__name__
            raise ModelError(
                f"Remote {self.name!r}: the tower must give a tensor of shape (ids, dim) for "
                f"{len(ids)} ids, found {found}"
            )
        return outputs.to(torch.float32)

    def extra_repr(self) -> str:
        """Return the name."""
        return f"name={self.name!r}"


class SamplingCorrection(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Corrects logits for data in which only a share of the negatives was kept.

    The module adds log(rate), unless it is in training; see `elasticdl.layers.SamplingCorrection`.

    Args:
        rate: The share of the negatives that was kept, above 0 and at most 1.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = require_rate(rate)

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits, corrected unless they are trained."""
        return logits if self.training else logits + math.log(self.rate)

    def extra_repr(self) -> str:
        """Return the rate."""
        return f"rate={self.rate}"


def _bags(ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Return the bag of each id, from the offsets at which bags begin."""
    places = torch.arange(ids.shape[0], device=ids.device)
    return torch.bucketize(places, offsets.to(torch.int64), right=True) - 1


def _padding(what: str, padding_idx: int | None, num_embeddings: int | None) -> int | None:
    if padding_idx is None or (num_embeddings is None and padding_idx >= 0):
        return padding_idx
    if num_embeddings is None or not -num_embeddings <= padding_idx < num_embeddings:
        raise ModelError(
            f"{what}: padding_idx must be one of the ids, 0 to "
            f"{num_embeddings - 1 if num_embeddings else '2**63 - 1'}, not {padding_idx}"
        )
    return padding_idx % num_embeddings


def _plain_weight(layer: nn.Module, given: torch.Tensor | None, freeze: bool) -> torch.Tensor:
    """Return the ordinary weight of a plain session."""
    if given is not None:
        return nn.Parameter(given, requires_grad=not freeze)
    weight = nn.Parameter(
        torch.empty(layer.num_embeddings, layer.embedding_dim), requires_grad=not freeze
    )
    _fill(weight, layer._initializer)
    if layer.padding_idx is not None:
        with torch.no_grad():
            weight[layer.padding_idx].fill_(0)
    return weight


def _fill(weight: torch.Tensor, initializer: Distribution) -> None:
    kind, params = initializer
    match kind:
        case "constant":
            nn.init.constant_(weight, params["value"])
        case "uniform":
            nn.init.uniform_(weight, params["low"], params["high"])
        case "normal":
            nn.init.normal_(weight, params["mean"], params["stddev"])
        case "truncated_normal" if isinstance(weight, TableParameter):
            weight.table_initializer = initializer
        case "truncated_normal":
            mean, stddev = params["mean"], params["stddev"]
            nn.init.trunc_normal_(weight, mean, stddev, mean - 2 * stddev, mean + 2 * stddev)
        case _:
            raise ModelError(
                f"Embedding: no initializer is of kind {kind!r}; constant, uniform, normal and "
                "truncated_normal are"
            )
