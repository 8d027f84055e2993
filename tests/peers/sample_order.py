"""Which sample a step draws, written a second time from the description in src/data/sample_order.h and
src/base/rng.h: a Feistel network of eight rounds whose keys come from Philox4x32-10."""

MASK = (1 << 64) - 1


def mix_bits(x: int) -> int:
    """SplitMix64's finalizer."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def site(name: str) -> int:
    """64-bit FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def philox(seed: int, step: int, name: str, group: int) -> list[int]:
    mixed = mix_bits(seed ^ mix_bits(site(name)))
    key = [mixed & 0xFFFFFFFF, mixed >> 32]
    c = [group & 0xFFFFFFFF, group >> 32, step & 0xFFFFFFFF, step >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ key[0], q & 0xFFFFFFFF, (p >> 32) ^ c[3] ^ key[1], p & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


class SampleOrder:
    def __init__(self, seed: int, samples: int) -> None:
        self.seed, self.samples = seed, samples
        self.keys: dict[int, list[int]] = {}
        bits = (samples - 1).bit_length()
        self.half = 1 if bits < 2 else (bits + 1) // 2

    def round_keys(self, epoch: int) -> list[int]:
        if epoch not in self.keys:
            words = [philox(self.seed, epoch, "data.sample_order", group) for group in range(4)]
            self.keys[epoch] = [w[i + 1] << 32 | w[i] for w in words for i in (0, 2)]
        return self.keys[epoch]

    def sample(self, index: int) -> int:
        """The sample of a global index, which counts on over epochs."""
        keys = self.round_keys(index // self.samples)
        mask, block = (1 << self.half) - 1, index % self.samples
        while True:
            left, right = block >> self.half, block & mask
            for key in keys:
                left, right = right, left ^ (mix_bits(right ^ key) & mask)
            block = left << self.half | right
            if block < self.samples:
                return block
