"""What the filters must keep and how likely each token must be: float64, by sorting."""

from __future__ import annotations

import math

import numpy as np


def top_k(weights: np.ndarray, k: int) -> np.ndarray:
    """Weights [vocab] with all but the k largest set to 0; ties go to the lowest id; k ≤ 0 keeps all."""
    return _first(weights, len(weights) if k <= 0 else k)


def top_p(weights: np.ndarray, p: float) -> np.ndarray:
    """Weights with all set to 0 but the fewest largest that sum up to p of the total."""
    running = np.cumsum(np.sort(weights.astype(np.float64))[::-1])
    if p >= 1:
        return weights.astype(np.float64)
    return _first(weights, int(np.argmax(running >= p * running[-1])) + 1)


def min_p(weights: np.ndarray, p: float) -> np.ndarray:
    """Weights with those below p times the largest set to 0."""
    return np.where(weights >= p * weights.max(), weights, 0).astype(np.float64)


def likelihoods(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Unnormalised probabilities, 1 at the peak."""
    return np.exp((logits.astype(np.float64) - logits.max()) / temperature)


def distribution(logits: np.ndarray, temperature: float, k: int = 0, p: float = 1.0, least: float = 0.0) -> np.ndarray:
    """Probabilities [vocab] of the next token: temperature, top-k, top-p, min-p, each on what the one before left."""
    weights = min_p(top_p(top_k(likelihoods(logits, temperature), k), p), least)
    return weights / weights.sum()


def chi_square(tokens: np.ndarray, probabilities: np.ndarray) -> tuple[float, float]:
    """Pearson's statistic of drawn tokens, and a bound that a true sampler exceeds once in a million.

    The bound is the Wilson-Hilferty approximation of the chi-square quantile (PNAS 17, 1931) at 4.753 standard
    deviations. Every token with a probability must be expected five times or more.
    """
    possible = probabilities > 0
    expected = probabilities[possible] * len(tokens)
    assert expected.min() >= 5
    seen = np.bincount(tokens, minlength=len(probabilities))[possible]
    freedom = len(expected) - 1
    if freedom == 0:
        return 0.0, 1.0
    ninth = 2 / (9 * freedom)
    bound = freedom * (1 - ninth + 4.753 * math.sqrt(ninth)) ** 3
    return float(((seen - expected) ** 2 / expected).sum()), bound


def _first(weights: np.ndarray, count: int) -> np.ndarray:
    order = np.argsort(-weights, kind="stable")[:count]
    kept = np.zeros(len(weights))
    kept[order] = weights[order]
    return kept


def penalised(
    logits: np.ndarray, prompt: list[int], output: list[int], repetition: float, presence: float, frequency: float
) -> np.ndarray:
    """Logits [vocab] after the repetition penalty, as transformers applies it, and the two of the OpenAI API."""
    out = logits.astype(np.float64)
    for token in set(prompt + output):
        out[token] = out[token] / repetition if out[token] > 0 else out[token] * repetition
    for token in set(output):
        out[token] -= presence + frequency * output.count(token)
    return out


def constrained(logits: np.ndarray, bias: dict[int, float], allowed: set[int] | None) -> np.ndarray:
    """Logits [vocab] plus biases, −inf where an id is not allowed."""
    out = logits.astype(np.float64)
    for token, value in bias.items():
        out[token] += value
    if allowed is not None:
        out[[token for token in range(len(out)) if token not in allowed]] = -np.inf
    return out


def logprobs(logits: np.ndarray) -> np.ndarray:
    """Log-softmax [vocab]; −inf stays −inf."""
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())
