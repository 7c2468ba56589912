"""With this folder on PYTHONPATH, Python's wall clock is `CLOCK_AHEAD` seconds ahead."""

import ctypes
import datetime as dt
import gc
import os
import time

_AHEAD = float(os.environ["CLOCK_AHEAD"])
_time, _time_ns = time.time, time.time_ns

time.time = lambda: _time() + _AHEAD
time.time_ns = lambda: _time_ns() + int(_AHEAD * 1_000_000_000)

# A C type refuses setattr; its dictionary takes what Python code would have put there.
_methods = gc.get_referents(dt.datetime.__dict__)[0]
_methods["now"] = classmethod(lambda cls, tz=None: cls.fromtimestamp(time.time(), tz))
_methods["utcnow"] = classmethod(
    lambda cls: cls.fromtimestamp(time.time(), dt.UTC).replace(tzinfo=None)
)
ctypes.pythonapi.PyType_Modified(ctypes.py_object(dt.datetime))
