"""Random numbers as engines make them: torch's generators on CPU and CUDA, and the hashes of vLLM and SGLang.

Every function gives the engine's own integers. What an engine computes from them in binary32 or with the fast logarithm
of a GPU is computed here in binary64, and `engines.py` knows how far that can be off.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tirage.exact.philox import philox4x32

Words = NDArray[np.uint64]
Numbers = NDArray[np.float64]

_LOW = np.uint64(0xFFFFFFFF)
_53_BITS = np.uint64((1 << 53) - 1)


class Mt19937:
    """The words of MT19937 seeded with 32 bits, as `std::mt19937` and torch's generator on a CPU give them.

    torch reads the lower 32 bits of a seed, and two words for each of its numbers, the higher half first.
    """

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed & 0xFFFFFFFF)

    def words(self, count: int) -> Words:
        """The next `count` words of 32 bits, uint64 [count]."""
        return self._state.randint(0, 1 << 32, size=count, dtype=np.uint32).astype(np.uint64)

    def words64(self, count: int) -> Words:
        """The next `count` words of 64 bits, uint64 [count], as torch's `random64`."""
        pairs = self.words(2 * count)
        return (pairs[0::2] << np.uint64(32)) | pairs[1::2]

    def exponentials(self, count: int) -> Numbers:
        """The next `count` numbers of torch's `exponential_` on a CPU, float64 [count] rounded to float32."""
        uniforms = (self.words64(count) & _53_BITS).astype(np.float64) * 2.0**-53
        return (-np.log1p(-uniforms)).astype(np.float32).astype(np.float64)

    def uniform(self) -> float:
        """The next number of `std::uniform_real_distribution<double>(0, 1)`: two words, the lower half first."""
        low, high = (int(word) for word in self.words(2))
        return min((low + high * 2.0**32) / 2.0**64, 1 - 2.0**-53)


class CudaPhilox:
    """torch's generator on CUDA, for float32 tensors of one size: Philox4x32-10, an offset that grows by 4 a call.

    A thread of the kernel has the block of its own index and fills every `threads`-th element with one of its four
    words. `threads` is the number of threads that the device runs at once, its multiprocessors times the threads of
    each; a kernel for fewer elements starts only as many blocks of 256 as it needs.
    Source: `DistributionTemplates.h` of PyTorch, `curand_philox4x32_x.h` of CUDA.
    """

    def __init__(self, seed: int, *, size: int, threads: int) -> None:
        self._key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
        self._threads = min(threads // 256, -(-size // 256)) * 256
        self._size, self._block = size, 0

    def words(self) -> Words:
        """The words [size] behind the next tensor."""
        count = -(-self._size // (4 * self._threads))
        rounds = [self._round(self._block + number) for number in range(count)]
        self._block += count
        return np.concatenate(rounds)[: self._size]

    def _round(self, block: int) -> Words:
        threads = np.arange(self._threads, dtype=np.uint64)
        zero = np.zeros_like(threads)
        counter = (zero + np.uint64(block), zero, threads, zero)
        return np.concatenate(philox4x32(counter, self._key))

    def uniforms(self) -> NDArray[np.float32]:
        """The next tensor of `curand_uniform4`, float32 [size] in (0, 1]."""
        return self.words().astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)

    def exponentials(self) -> Numbers:
        """The next tensor of `exponential_`, float64 [size], with an exact logarithm in place of the GPU's fast one."""
        values = self.uniforms().astype(np.float64)
        least = 2.0**-24
        return np.where(values >= 1 - least, least, -np.log(np.minimum(values, 1 - least)))


def murmur3(seed: int, position: int, keys: Words) -> Words:
    """Words of 32 bits [n]: MurmurHash3 of a seed's two halves, a position and each of `keys`, as SGLang and vLLM."""
    prefix = 0
    for word in (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, position & 0xFFFFFFFF):
        prefix = int(_mixed(np.uint64(prefix), np.array(word, np.uint64)))
    mixed = _mixed(np.uint64(prefix), keys.astype(np.uint64)) ^ np.uint64(16)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed = ((mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)) & _LOW
    return mixed


def _mixed(hashed: np.uint64, words: Words) -> Words:
    """A step of MurmurHash3: products of 32-bit words in 64 bits never wrap."""
    words = _rotated((words * np.uint64(0xCC9E2D51)) & _LOW, 15)
    words = hashed ^ ((words * np.uint64(0x1B873593)) & _LOW)
    return (_rotated(words, 13) * np.uint64(5) + np.uint64(0xE6546B64)) & _LOW


def _rotated(words: Words, shift: int) -> Words:
    return ((words << np.uint64(shift)) | (words >> np.uint64(32 - shift))) & _LOW


def splitmix64(seed: int, size: int) -> Numbers:
    """The Gumbel noise of vLLM's kernel on a CPU, float64 [size], from a seed of its own for each draw."""
    with np.errstate(over="ignore"):  # It is modular.
        key = _finished(np.array([seed], np.uint64))
        tokens = np.arange(1, size + 1, dtype=np.uint64)
        bits = _finished(key + tokens * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(11)
    uniforms = (bits.astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniforms))


def _finished(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
