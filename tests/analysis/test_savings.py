"""What spans saved, in words."""

from posattn_jax.analysis.savings import what_spans_saved

SHARES = {
    "initial_pair_share": {"block_0": 0.7, "block_1": 0.6},
    "pair_share": {"block_0": 0.5, "block_1": 0.25, "block_2": 1.0},  # the last has a window that is given
    "score_share": {"block_0": 0.5, "block_1": 0.5, "block_2": 1.0},
}


def test_what_is_known_is_told():
    assert what_spans_saved({"initial_pair_share": {}}) == []
    speeds = {"span_saving": {"with_span": 12.345, "without_span": 5.0}}
    lines = what_spans_saved(SHARES | speeds)
    assert lines == [
        "pairs inside the spans: 37.5 %, at first 65.0 %; computed: 50.0 %",
        "updates a second: 12.3 with the spans, 5 without a span: 2.47 times as fast",
    ]
    assert all(len(line) <= 80 for line in lines) and what_spans_saved(SHARES) == lines[:1]
