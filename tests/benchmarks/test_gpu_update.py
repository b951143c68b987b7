import collections

import pytest

from benchmarks.compilers.gpu_update import cells, launches, main
from posattn_jax.system.errors import InputError

# A loop of two steps, as XLA writes it: each launches two kernels of attention, and after it one of the optimiser.
HLO = """HloModule jit_update, is_scheduled=true

%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[8]{0} get-tuple-element(%state), index=1
  %next = s32[] fusion(%i), kind=kLoop, calls=%f, metadata={op_name="jit(update)/attention/add"}
  %ffi.1 = f32[8]{0} custom-call(%x), custom_call_target="posattn_jax_cuda", metadata={op_name="jit(x)/attention/ffi"}
  ROOT %both = (s32[], f32[8]{0}) tuple(%next, %ffi.1)
}

%condition (state: (s32[], f32[8])) -> pred[] {
  %state.1 = (s32[], f32[8]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  %two = s32[] constant(2)
  ROOT %less = pred[] compare(%i.1, %two), direction=LT
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x.1 = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8]{0}) tuple(%zero, %x.1)
  %loop = (s32[], f32[8]{0}) while(%start), condition=%condition, body=%body
  %y = f32[8]{0} get-tuple-element(%loop), index=1
  ROOT %step = f32[8]{0} fusion(%y), kind=kLoop, calls=%f, metadata={op_name="jit(update)/optimizer/add"}
}
"""


def test_launches_are_those_of_all_steps():
    counted = launches(HLO)
    assert counted == {"all": 5, "attention": 4, "optimiser": 1, "ours": 2}
    row = {"treatment": "span_2d", "merged": "yes", "launches": collections.Counter(counted), "temp_mib": 7}
    assert cells(row) == ["span_2d", "one", "5", "2", "4", "0", "1", "0", "7"]


@pytest.mark.parametrize("flag, allowed", [("--treatments=span_3d", "baseline_1d, "), ("--merged=maybe", "no, yes")])
def test_what_is_not_known_is_told(flag, allowed):
    with pytest.raises(InputError, match=f"^{flag}: expected some of {allowed}"):
        main(["", flag])
