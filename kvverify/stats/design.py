"""How paired items hang together: strata that are averaged with equal weight, and clusters of items that vary together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Design:
    """The mean of the strata's means, and what each cluster adds to it.

    ``components`` hold the influence of each cluster, one array for each set of strata that shares no cluster with another set: the
    sum over the cluster's items of (D_i - mean of its stratum) / (strata * items of the stratum). Within a component
    they add up to 0; components are independent of each other. ``names`` are the strata of each component.
    """

    mean: float
    components: list[Floats]
    names: list[str]
    unit: str  # cluster, or pair where nothing is shared

    @property
    def clusters(self) -> int:
        """Number of distinct clusters."""
        return sum(component.size for component in self.components)

    @property
    def undefined(self) -> str:
        """Why nothing can be said about the mean's error, empty if something can."""
        lonely = [name for name, component in zip(self.names, self.components, strict=True) if component.size < 2]
        if not lonely:
            return ""
        where = f" in {', '.join(lonely)}" if any(lonely) else ""
        return f"one {self.unit}{where}: how much {self.unit}s vary cannot be seen in one"


def design(
    differences: npt.ArrayLike,
    *,
    strata: Sequence[Hashable] | npt.NDArray[Any] | None = None,
    clusters: Sequence[Hashable] | npt.NDArray[Any] | None = None,
) -> Design:
    """Arrange n differences by the stratum and the cluster of each; without clusters each item is one.

    Raises:
        ValueError: no difference, one that is not finite, or labels of another number.
    """
    values = _finite(differences)
    layer, names = _numbered(strata, values.size, "strata")
    sizes = np.bincount(layer)
    means = np.bincount(layer, values) / sizes
    influence = (values - means[layer]) / (sizes.size * sizes[layer])
    mean = float(means.mean())
    if clusters is None:
        return Design(mean, [influence[layer == k] for k in range(sizes.size)], names, "pair")
    group, _ = _numbered(clusters, values.size, "clusters")
    component = _components(layer, group)
    parts, together = [], []
    for k in np.unique(component):
        inside = component[layer] == k
        _, compact = np.unique(group[inside], return_inverse=True)
        parts.append(_sums(compact, influence[inside]))
        together.append(", ".join(name for name, of in zip(names, component, strict=True) if of == k))
    return Design(mean, parts, together, "cluster")


def contributions(
    differences: npt.ArrayLike,
    *,
    strata: Sequence[Hashable] | npt.NDArray[Any] | None = None,
    clusters: Sequence[Hashable] | npt.NDArray[Any] | None = None,
) -> tuple[Floats, Floats]:
    """Return what each cluster brings to the mean of the strata's means, and its weight in it; they add up to the mean and to 1.

    Raises:
        ValueError: no difference, one that is not finite, or labels of another number.
    """
    values = _finite(differences)
    layer, _ = _numbered(strata, values.size, "strata")
    sizes = np.bincount(layer)
    weight = 1.0 / (sizes.size * sizes[layer])
    if clusters is None:
        return values * weight, weight
    group, _ = _numbered(clusters, values.size, "clusters")
    return _sums(group, values * weight), _sums(group, weight)


def _sums(group: npt.NDArray[np.intp], values: Floats) -> Floats:
    return np.bincount(group, values).astype(np.float64, copy=False)  # for the type: of floats they are floats


def _finite(differences: npt.ArrayLike) -> Floats:
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or not values.size:
        raise ValueError(
            f"paired differences of shape {values.shape}: expected one for each pair, and one pair at least"
        )
    if not np.isfinite(values).all():
        raise ValueError(f"{int((~np.isfinite(values)).sum())} of {values.size} paired differences are not finite")
    return values


def _numbered(
    labels: Sequence[Hashable] | npt.NDArray[Any] | None, size: int, what: str
) -> tuple[npt.NDArray[np.intp], list[str]]:
    """Return for each item the number of its label, in order of appearance, and the labels."""
    if labels is None:
        return np.zeros(size, dtype=np.intp), [""]
    if len(labels) != size:
        raise ValueError(f"{len(labels)} {what} for {size} paired differences: expected one for each")
    numbers: dict[Hashable, int] = {}
    coded = [numbers.setdefault(label, len(numbers)) for label in labels]
    return np.asarray(coded, dtype=np.intp), [str(label) for label in numbers]


def _components(layer: npt.NDArray[np.intp], group: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return for each stratum the smallest number of those that clusters tie it to, directly or through others."""
    component = np.arange(int(layer.max()) + 1)
    while True:
        smallest = np.full(int(group.max()) + 1, component.size)
        np.minimum.at(smallest, group, component[layer])
        tied = component.copy()
        np.minimum.at(tied, layer, smallest[group])
        if (tied == component).all():
            return component
        component = tied
