"""The training itself: iterations, evaluations, checkpoints, and an end that can come at any time."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from dataprep.errors import DataprepError
from dataprep.train.builtin.figures import Figures, flops_per_token, learning_rate, peak_flops
from dataprep.train.builtin.model import build, distributed, loss_of, next_token_loss, optimizer_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.samples import SplitPart
    from dataprep.train.builtin.checkpoints import Checkpoints
    from dataprep.train.builtin.data import Samples
    from dataprep.train.builtin.ranks import Ranks
    from dataprep.train.builtin.settings import Settings


class Training:
    """One training on one of its ranks.

    Args:
        settings: what it is.
        ranks: this one and the others.
        parts: the samples of train, and of valid and test where there are any.
        checkpoints: where it goes on from, and what it leaves.
    """

    def __init__(
        self, settings: Settings, ranks: Ranks, parts: dict[SplitPart, Samples], checkpoints: Checkpoints
    ) -> None:
        self._settings, self._ranks, self._parts, self._checkpoints = settings, ranks, parts, checkpoints
        model = build(settings.shape, settings.seed)
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self._flops = flops_per_token(num_parameters, settings.shape, settings.seq_length)
        self._model = distributed(model, settings, ranks)
        self._loss = torch.compile(next_token_loss) if settings.compile else next_token_loss
        self._optimizer = optimizer_of(self._model, settings)
        self._peak = peak_flops(torch.cuda.get_device_name()) if ranks.device.type == "cuda" else None
        self._iteration = checkpoints.resume(self._model, self._optimizer)
        self._saved = self._iteration
        self._told = 0
        self._reader = ThreadPoolExecutor(1, "dataprep-read")

    def run(self) -> int:
        """Train to the end, or until a signal says to end.

        Returns:
            The exit code: 0, or 128 and the signal's number.

        Raises:
            DataprepError: the loss is no number any more, or the data or the output fails.
        """
        settings = self._settings
        figures = None
        if self._ranks.rank == 0:
            figures = Figures(Path(settings.output), self._iteration, settings.train_iters)
            figures.say(
                f"training from iteration {self._iteration} on {self._ranks.size} rank{'s' * (self._ranks.size > 1)}"
            )
        try:
            with self._listening():
                code = self._iterate(figures)
                self._checkpoints.finish()
            if figures is not None:
                figures.say(f"{'told to end' if code else 'done'}: iteration {self._iteration} is saved")
            return code
        finally:
            self._reader.shutdown(cancel_futures=True)
            if figures is not None:
                figures.close()

    def _iterate(self, figures: Figures | None) -> int:
        settings, begun = self._settings, time.monotonic()
        total, count, seconds = torch.zeros((), device=self._ranks.device), 0, 0.0
        batches = self._read("train", self._iteration, settings.train_iters)
        while self._iteration < settings.train_iters:
            if number := self._ranks.largest(self._told):
                if self._saved < self._iteration:
                    self._mean(total)
                    self._save()
                return 128 + number
            start = time.monotonic()
            loss, norm = self._step(next(batches))
            total, count, self._iteration = total + loss, count + 1, self._iteration + 1
            is_last = self._iteration == settings.train_iters
            logs, saves = self._is_due(settings.log_interval), is_last or self._is_due(settings.save_interval)
            mean = self._mean(total / count) if logs or saves else 0.0
            seconds += time.monotonic() - start
            if logs:
                self._log(figures, {"loss": mean, "grad_norm": norm}, seconds / count, time.monotonic() - begun)
                total, count, seconds = torch.zeros_like(total), 0, 0.0
            if saves:
                self._save()
            if "valid" in self._parts and (is_last or self._is_due(settings.eval_interval)):
                self._evaluate("valid", figures)
            if "test" in self._parts and is_last:
                self._evaluate("test", figures)
        return 0

    def _step(self, batch: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """One iteration. Returns the loss of this rank, and the norm of the gradient, both still on the device."""
        settings, model = self._settings, self._model
        loss = torch.zeros((), device=self._ranks.device)
        for number, tokens in enumerate(batch):
            waits = settings.parallel == "ddp" and number + 1 < len(batch)
            with model.no_sync() if waits else contextlib.nullcontext():
                part = loss_of(model, tokens.to(self._ranks.device), settings, self._loss) / len(batch)
                part.backward()
            loss += part.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_grad or math.inf)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(settings, self._iteration)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss, norm

    def _evaluate(self, part: SplitPart, figures: Figures | None) -> None:
        """The mean loss over the first `eval_iters` global batches of a part: the same samples every time."""
        self._model.eval()
        total = torch.zeros((), device=self._ranks.device)
        with torch.no_grad():
            for batch in self._read(part, 0, self._settings.eval_iters):
                for tokens in batch:
                    loss = loss_of(self._model, tokens.to(self._ranks.device), self._settings, self._loss)
                    total += loss / (len(batch) * self._settings.eval_iters)
        self._model.train()
        mean = self._ranks.mean(total)
        if figures is not None:
            figures.add({"iteration": self._iteration, f"{part}_loss": mean})

    def _read(self, part: SplitPart, first: int, last: int) -> Iterator[list[torch.Tensor]]:
        """This rank's share of global batches [first, last) of a part; the next one is read meanwhile."""
        settings, ranks = self._settings, self._ranks

        def read(number: int) -> list[torch.Tensor]:
            consumed = number * settings.global_batch_size
            found = self._parts[part].micro_batches(consumed, settings, ranks.rank, ranks.size)
            return [torch.from_numpy(tokens) for tokens in found]

        batch = self._reader.submit(read, first)
        for number in range(first, last):
            found = batch.result()
            if number + 1 < last:
                batch = self._reader.submit(read, number + 1)
            yield found

    def _is_due(self, interval: int | None) -> bool:
        return interval is not None and self._iteration % interval == 0

    def _mean(self, loss: torch.Tensor) -> float:
        """The mean over all ranks; no checkpoint is written of a model that has lost its mind.

        Raises:
            DataprepError: it is no number.
        """
        mean = self._ranks.mean(loss)
        if not math.isfinite(mean):
            raise DataprepError(
                f"the loss is {mean} at iteration {self._iteration}, and the last checkpoint of {self._saved}; "
                "a lower lr, a longer lr_warmup_iters or a smaller clip_grad may help, in a new output"
            )
        return mean

    def _log(self, figures: Figures | None, values: dict[str, Any], each: float, seconds: float) -> None:
        if figures is None:
            return
        settings = self._settings
        samples = self._iteration * settings.global_batch_size
        speed = settings.global_batch_size * settings.seq_length / each
        norm = values["grad_norm"]
        figures.add(
            {
                "iteration": self._iteration,
                "consumed_samples": samples,
                "consumed_tokens": samples * settings.seq_length,
                "loss": values["loss"],
                "lr": learning_rate(settings, self._iteration - 1),
                "grad_norm": float(norm),
                "tokens_per_second": speed,
                "mfu": speed * self._flops / (self._peak * self._ranks.size) if self._peak else None,
                "seconds": seconds,
            }
        )

    def _save(self) -> None:
        self._checkpoints.save(self._model, self._optimizer, self._iteration)
        self._saved = self._iteration

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Note the signals that say to end; every rank learns of it before the next iteration."""

        def note(number: int, frame: object) -> None:
            self._told = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM

        warns = [signal.SIGUSR1] if "SLURM_JOB_ID" in os.environ else []
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, *warns)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
