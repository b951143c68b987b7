"""Configs that earlier versions saved, whose classes have more fields by now."""

import json

from configs import digits
from posattn_jax.build.saved import completed


def saved():
    return json.loads(json.dumps(digits.get_config("tiny").to_dict()))


def test_nothing_is_added_where_nothing_is_missing():
    assert completed(saved()) == saved()


def test_what_is_missing_has_its_default_and_what_is_there_stays():
    earlier = saved()
    attention = earlier["model"]["block"]["attention"]
    del attention["use_bias"], attention["span"]["per_head"]
    attention["span"]["threshold"] = 0.7
    found = completed(earlier)["model"]["block"]["attention"]
    assert found["use_bias"] is True and found["span"]["per_head"] is False and found["span"]["threshold"] == 0.7


def test_a_class_that_is_no_more_stays():
    gone = {"data": {"kind": "posattn_jax.data.gone:Images", "size": 3}, "seed": 1}
    assert completed(gone) == gone
