import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from resharpen import streams

ONES = 0xFFFFFFFF


def philox_by_hand(key, counter):
    """Philox4x32-10 with Python integers, from the paper's definition."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        hi0, lo0 = divmod(0xD2511F53 * c0, 2**32)
        hi1, lo1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


def test_known_answers():
    """The vectors that come with Random123."""
    cases = [
        ((0, 0), (0, 0, 0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ONES, ONES), (ONES,) * 4, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0xA4093822, 0x299F31D0),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ]
    for key, counter, expected in cases:
        assert [f"{word:08x}" for word in streams.philox(key, counter)] == expected.split()


words32 = st.integers(0, ONES)


@given(st.tuples(words32, words32), st.tuples(words32, words32, words32, words32))
def test_agrees_with_integers(key, counter):
    assert streams.philox(key, counter).tolist() == philox_by_hand(key, counter)


def test_words_are_blocks_in_order():
    key = streams.key(1, "a", "b")
    flat = streams.words(key, 11, index=7, step=9)
    blocks = [philox_by_hand(key, (block, 7, 9, 0)) for block in range(3)]
    assert flat.tolist() == [word for block in blocks for word in block][:11]


def test_words_broadcast_over_index():
    key = streams.key(0, "x")
    many = streams.words(key, 6, index=np.array([4, 2, 0]))
    assert many.shape == (3, 6)
    assert (many[1] == streams.words(key, 6, index=2)).all()


def test_first_uniforms_are_pinned():
    """These numbers may never change: stored runs depend on them."""
    key = streams.key(0, "sct-v9-s3", "draw", "peak_learning_rate")
    first = streams.uniforms(key, 1, np.arange(3))[:, 0].tolist()
    assert first == [0.28170955753461635, 0.26020383062407737, 0.30271962143124476]


def test_uniforms_use_53_bits():
    key = streams.key(5, "u")
    high, low = (int(word) for word in streams.words(key, 2))
    assert streams.uniforms(key, 1)[0] == ((high << 32 | low) >> 11) / 2**53


def test_keys_differ_by_every_part():
    keys = {streams.key(seed, *parts) for seed in (0, 1) for parts in (("a", "bc"), ("ab", "c"), ("a", "bd"))}
    assert len(keys) == 6


@given(st.integers(1, 2**31), st.lists(words32, min_size=1, max_size=20))
def test_below_is_the_high_half_of_the_product(bound, words):
    expected = [word * bound >> 32 for word in words]
    assert streams.below(np.array(words, dtype=np.uint32), bound).tolist() == expected
    assert max(expected) < bound
