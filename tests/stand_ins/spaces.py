"""Stands in for Hugging Face's package of this name on a machine without ZeroGPU.

As the real one does: each call of a decorated generator function runs in a forked process, its arguments and
what it yields are pickled, closing the generator stops the other process after its next value, and what goes
wrong is a Gradio error that does not tell the message. Unlike the real one, no process is used twice."""

import multiprocessing
import os
import pickle
import threading
from multiprocessing.queues import SimpleQueue

import gradio as gr

FORK = multiprocessing.get_context("fork")
calls: list[tuple[int, int]] = []  # of each call: the process that made it, and the seconds that it asked for
refusal: Exception | None = None  # what the next calls get instead of a GPU


def GPU(task, duration):
    def call(*arguments):
        calls.append((os.getpid(), duration(*arguments)))
        if refusal:
            raise refusal
        results, stopped = SimpleQueue(ctx=FORK), FORK.Event()
        pickled = pickle.dumps(arguments)
        process = FORK.Process(target=work, args=(task, pickled, results, stopped), daemon=True)
        process.start()
        results._writer.close()  # so that reading ends when the process is gone
        try:
            while True:
                try:
                    kind, value = results.get()
                except EOFError:
                    raise gr.Error("GPU task aborted", title="ZeroGPU worker error") from None
                if kind == "end":
                    return
                if kind == "error":
                    raise gr.Error(value, title="ZeroGPU worker error")
                try:
                    yield value
                except GeneratorExit:
                    stopped.set()
                    raise
        finally:
            results._reader.close()
            process.join(60)
            assert process.exitcode is not None, "the process goes on"

    return call


def work(task, pickled, results, stopped):
    # In a thread of its own, as there.
    thread = threading.Thread(target=iterate, args=(task, pickled, results, stopped))
    thread.start()
    thread.join()


def iterate(task, pickled, results, stopped):
    values = task(*pickle.loads(pickled))
    try:
        for value in values:
            if stopped.is_set():
                values.close()
                break
            results.put(("value", value))
        results.put(("end", None))
    except BrokenPipeError:  # nobody reads any more
        values.close()
    except Exception as error:
        results.put(("error", type(error).__name__))


def gradio_auto_wrap(task):
    """Gradio asks for it; off in the real package unless a Space asks for it."""
    return task
