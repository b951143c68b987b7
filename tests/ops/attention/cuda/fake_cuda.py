"""Calls the handler with a fake of CUDA's driver, and prints what the driver was asked for, by call.

Run in a process of its own, in which no other driver is loaded: python fake_cuda.py FAKE HANDLER
"""

import ctypes
import json
import sys

import numpy as np

EXECUTE, INITIALIZE = 3, 2  # XLA's stages
LAUNCHES = (0, 7, 2, 70000, 0, 1, 3, 1, 1000, 2, 4, 99, 5, -1, 0, 5, 1, 80000, 1, 5, 8, 2, 0, 4, 0, 0)


def main(fake, handler):
    fake, handler = ctypes.CDLL(fake), ctypes.CDLL(handler)
    fake.call.restype = ctypes.c_char_p

    def call(stage, number):
        lists = [
            (np.int64, LAUNCHES),
            (np.int64, [1]),  # clear
            (np.int32, [1, 2, 3, 4, 5, 6, 7]),  # words
            (np.int64, [0, 0, 2, 2, 4, -1]),  # pointers
            (np.int64, [0xF0000000A, 0xB, 0xC]),  # addresses: one argument, two results
        ]
        lists = [np.array(values, dtype) for dtype, values in lists]
        pointers = [part for x in lists for part in (x.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(x.size))]
        pointers[-1:] = [ctypes.c_size_t(1), ctypes.c_size_t(2)]
        return fake.call(getattr(handler, f"posattn_{stage}"), number, b"name", *pointers).decode().splitlines()

    found = [call("execute", EXECUTE)]
    handler.posattn_register(b"name", b"IMAGE", ctypes.c_size_t(5))
    found += [call("initialize", INITIALIZE), call("execute", EXECUTE)]
    fake.set(1, 0)
    found += [call("execute", EXECUTE)]
    fake.set(0, 700)
    found += [call("execute", EXECUTE), [fake.traits(handler.posattn_execute), fake.traits(handler.posattn_initialize)]]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
