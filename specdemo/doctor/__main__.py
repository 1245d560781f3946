"""python -m specdemo.doctor SECTION START: one section, for the parent process in run.py."""

import sys
from importlib import import_module

from specdemo.doctor.run import SECTIONS
from specdemo.doctor.trials import open_channel, serve

if __name__ == "__main__":
    channel = open_channel()  # before the import, because libraries print when they are imported
    name, start = sys.argv[1], int(sys.argv[2])
    module = import_module(f"specdemo.doctor.{SECTIONS[name][0]}")
    serve(name, module.TRIALS[name], start, channel)
