"""POST /v1/classify: what is on images, through the same queue as every answer."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from fastapi import Request, Response

from rebar.service.body import decode_body
from rebar.service.classify_request import ClassifyJob, classify_job
from rebar.service.http.middleware import record_of
from rebar.service.http.off_loop import OffLoop
from rebar.service.http.reading import read_body, until_disconnect
from rebar.service.http.urgency import with_urgency
from rebar.service.http.waves import vectors_of
from rebar.service.router import ServiceRouter
from rebar.service.wire import ClassifyBody

IMAGE_BYTES = 64  # of text that takes as long to check as an image's answer to write: some 30 us


class LabelScore(msgspec.Struct):
    """A label and its probability; those of all labels of the model add up to 1."""

    label: str
    probability: float


class Classification(msgspec.Struct):
    """What is on one image: its likeliest label, and the `top_k` likeliest, likeliest first."""

    index: int
    label: str
    probability: float
    top: list[LabelScore]
    object: Literal["classification"] = "classification"


class ClassificationList(msgspec.Struct):
    """The answer of POST /v1/classify, in the order of the images."""

    data: list[Classification]
    model: str
    object: Literal["list"] = "list"


class ClassifyRoutes:
    """The handler and what it needs."""

    def __init__(self, router: ServiceRouter, off_loop: OffLoop) -> None:
        self._router = router
        self._off_loop = off_loop

    async def classify(self, request: Request) -> Response:
        """The likeliest labels of each image. An image is a PNG file in base64, or rows of pixels
        from 0 to 255, of the size that the model was trained on. What is said of one does not
        depend on the others.
        """
        raw = await read_body(request)
        record = record_of(request.scope)

        body = await self._off_loop.run(len(raw), lambda: decode_body(raw, ClassifyBody))
        route = self._router.route(body.model, images=True)
        name, service, config = route.model.name, route.service, route.model.classifier
        assert config is not None, "the router asked for it"
        # By what comes out of it: few bytes may stand for many pixels.
        job = await self._off_loop.run(
            max(len(raw), config.values * len(body.images)),
            lambda: classify_job(name, config, body, record.caller),
        )
        job = with_urgency(job, request.headers, record.started)
        record.notes.update(model=job.model, inputs=len(job.packets))
        logits = await until_disconnect(
            request.receive, vectors_of(service, job.model, job.packets, record.started)
        )
        labels = config.labels
        size = sum(map(len, logits)) + IMAGE_BYTES * len(logits)
        answer = await self._off_loop.run(size, lambda: answer_of(job, labels, logits))
        return Response(answer, media_type="application/json")


def answer_of(job: ClassifyJob, labels: tuple[str, ...], logits: list[bytes]) -> bytes:
    """The JSON of the answer."""
    listed = []
    for index, row in enumerate(logits):
        top = likeliest(np.frombuffer(row, np.float32), labels, job.top)
        listed.append(Classification(index, top[0].label, top[0].probability, top))
    return msgspec.json.encode(ClassificationList(listed, job.model))


def likeliest(logits: np.ndarray, labels: tuple[str, ...], count: int) -> list[LabelScore]:
    """The labels of the largest logits, softmax in float64; among equals the first comes first."""
    wide = logits.astype(np.float64)
    weights = np.exp(wide - wide.max())
    shares = weights / weights.sum()
    order = np.argsort(-shares, kind="stable")[:count].tolist()
    return [LabelScore(labels[i], float(shares[i])) for i in order]
