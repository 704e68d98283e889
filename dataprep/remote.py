"""The reference in a process of its own.

Opening a tokenizer holds the GIL: 0.1 s for GPT-2, 0.6 s for Llama-3. The reference answers for one document in
thousands, so its process opens it while this one opens the engine and starts the cluster; what the reference takes
for a document, 100 bytes of memory per byte of text, is not this process's either.

A request is a pickled TextBatch, an answer a pickled TokenBatch or exception, over the child's stdin and stdout; the
child ends when its stdin does, so it outlives neither the object nor, however it dies, the parent.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from dataprep.definitions import load
from dataprep.encoders import open_reference, reference_of
from dataprep.errors import DataprepError, EncodeError

if TYPE_CHECKING:
    from dataprep.batches import TextBatch, TokenBatch
    from dataprep.definitions import SpecialText
    from dataprep.specs import TokenizerIdentity


class RemoteReference:
    """An Encoder: what `open_reference` would give, opened in the background.

    Args:
        identity: the tokenizer.
        special_text: how special strings are taken.
    """

    def __init__(self, identity: TokenizerIdentity, special_text: SpecialText) -> None:
        self.name, self.version = reference_of(identity.type)
        self._identity = identity
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import sys; sys.path[:] = {sys.path!r}; from dataprep.remote import serve; serve()",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # a terminal's Ctrl-C is for the parent
        )
        self._finalizer = weakref.finalize(self, _end, self._process)
        self._send((identity, special_text))

    @property
    def added(self) -> list[str]:
        """The strings that the files declare to be tokens of their own."""
        return list(load(self._identity).added)

    def encode(self, batch: TextBatch) -> TokenBatch:
        """Encode one batch; waits until the child has opened the tokenizer.

        Raises:
            SpecError: the reference library cannot read the files.
            EncodeError: the child died.
        """
        with self._lock:
            self._send(batch)
            try:
                assert self._process.stdout is not None
                answer = pickle.load(self._process.stdout)
            except (EOFError, pickle.UnpicklingError) as error:
                raise self._died() from error
        if isinstance(answer, Exception):
            raise answer
        tokens: TokenBatch = answer
        return tokens

    def _send(self, value: Any) -> None:
        try:
            assert self._process.stdin is not None
            pickle.dump(value, self._process.stdin, protocol=5)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._died() from error

    def _died(self) -> EncodeError:
        code = self._process.wait()
        return EncodeError(
            f"the process of the reference {self.name} {self.version} ended with code {code}; -9 means that it was "
            "killed, most likely out of memory: run again with a lower --set reader.max_document_bytes= or more memory"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what was not flushed is of no use any more
            if stream is not None:
                stream.close()
    process.wait()


def serve() -> None:
    """The child: open the reference that stdin tells, then answer until stdin ends."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    reference: Any = None
    with contextlib.suppress(EOFError, BrokenPipeError):
        identity, special_text = pickle.load(requests)
        try:
            reference = open_reference(load(identity), special_text)
        except DataprepError as error:
            reference = error
        while True:
            batch = pickle.load(requests)
            answer = reference if isinstance(reference, Exception) else reference.encode(batch)
            pickle.dump(answer, answers, protocol=5)
            answers.flush()
    os._exit(0)  # nobody waits for the interpreter to tidy up
