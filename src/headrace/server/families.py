"""Figures by the values of their labels, as families for Prometheus' client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from headrace.execution.histogram import Histogram

Labels = tuple[str, ...]
MODEL_LABELS = ("model_name", "engine")


def counter(name: str, text: str, values: Mapping[Labels, float], names: Sequence[str] = MODEL_LABELS) -> Metric:
    """A family of counters; "_total" is put after its name."""
    family = CounterMetricFamily(name, text, labels=names)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def gauge(name: str, text: str, values: Mapping[Labels, float], names: Sequence[str] = MODEL_LABELS) -> Metric:
    """A family of gauges."""
    family = GaugeMetricFamily(name, text, labels=names)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def histogram(name: str, text: str, values: Mapping[Labels, Histogram], names: Sequence[str] = MODEL_LABELS) -> Metric:
    """A family of histograms. Another thread may be observing: the number of values is that of the ranges as read."""
    family = HistogramMetricFamily(name, text, labels=names)
    for labels, of in values.items():
        buckets, below = [], 0
        for bound, count in zip((*of.bounds, float("inf")), of.counts.copy(), strict=True):
            below += count
            buckets.append((floatToGoString(bound), below))  # type: ignore[no-untyped-call]
        family.add_metric(labels, buckets, of.total)
    return family
