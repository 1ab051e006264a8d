"""rebar train-images"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rebar.cli.options import Json, format_size
from rebar.cli.output import emit
from rebar.cli.settings import places
from rebar.cli.training_flags import ImageFlags, OnError
from rebar.errors import InputError

if TYPE_CHECKING:
    from rebar.dataflow.images import ImageBatches, ImageSurvey
    from rebar.dataflow.images.dataset import ImageDataset
    from rebar.graph.image_learner import ImageLearner
    from rebar.graph.models.image_config import ConvNetConfig

RATE = 3e-3


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class NetFlags:
    """The network, and how its images are moved about."""

    stages: Annotated[
        str, Parameter(help="Channels of each stage of two convolutions, like 32,64.")
    ] = "32,64"
    dropout: Annotated[float, Parameter(help="Share of the features dropped.")] = 0.1
    shift: Annotated[float, Parameter(help="Pixels that an image may be shifted by.")] = 1.0
    degrees: Annotated[float, Parameter(help="Degrees that it may be turned by.")] = 10.0

    @property
    def channels(self) -> tuple[int, ...]:
        """Of each stage. InputError for what is no list of numbers."""
        try:
            return tuple(int(word) for word in self.stages.split(","))
        except ValueError as error:
            raise InputError(
                f"--stages {self.stages!r} is no list of numbers. Give one like 32,64.",
                param="stages",
            ) from error


def train_images(
    data: Annotated[Path, Parameter(help="Labelled images: a .npz file or a folder.")],
    *,
    out: Annotated[Path, Parameter(help="Folder for the model, log and checkpoints.")],
    eval_data: Annotated[Path | None, Parameter(help="Labelled images to evaluate on.")] = None,
    on_error: Annotated[
        OnError, Parameter(help="What to do about a file that is no image.")
    ] = "raise",
    net: NetFlags | None = None,
    flags: ImageFlags | None = None,
    json: Json = False,
) -> int:
    """Train an image classifier from nothing on labelled images.

    DATA is a .npz file with `images` (n, height, width) or (n, height, width, 3) of uint8, `labels`
    (n,) and, if they have any, `names`; or a folder with a folder of .png files for each label. All
    images are of one size. OUT gets model.rebar, which `rebar serve` serves at POST /v1/classify,
    log.jsonl, loss.svg and checkpoints. A fifth is held out unless --eval-data or --eval-split says
    otherwise.
    """
    from rebar.cli.training_run import Run
    from rebar.dataflow.images import held_out
    from rebar.graph.training_plan import plan_of

    net, flags = net or NetFlags(), flags or ImageFlags()
    learn, held, seen = _data(data, eval_data, flags, on_error)
    config = _config(seen, learn.labels, net)
    with Run.open(out, flags) as run:
        source = _source(learn, config, net, flags, on_error)
        evaluated = held_out(held, config, flags.batch_tokens, on_error)
        count = sum(batch.rows for batch in evaluated)
        size = f"{config.height} x {config.width} x {config.channels}"
        run.note(f"data       {len(learn):,} images of {size}, {len(config.labels)} labels")
        for remark in seen.remarks:
            run.note(f"           {remark}")
        run.note(f"held out   {count:,} images")
        learner = _learner(config, flags)
        run.note_plan(plan_of(learner))
        run.note(f"model      {learner.parameters.count:,} parameters")
        facts = {"data": str(data), **asdict(net), **asdict(flags)}
        done = run.train(learner, source, evaluated, RATE, facts, f"{data.name}, from nothing")
        if run.speaks:
            right = sum(learner.right(batch) for batch in evaluated)
            done |= {"held_out_right": f"{right} of {count}"}
            done |= {"held_out_accuracy": round(right / max(count, 1), 4)}
            done |= _write(out, learner, str(data))
            emit(done, json=json)
    return run.exit_code


def _data(
    data: Path, eval_data: Path | None, flags: ImageFlags, on_error: OnError
) -> tuple[ImageDataset, ImageDataset, ImageSurvey]:
    """What is learned from, what is held out, and what was seen of both."""
    from rebar.dataflow.images import ImageSurvey, open_images, split, survey_images

    whole = open_images(data)
    seen = survey_images(whole, on_error)
    if eval_data is None:
        return *split(whole, flags.eval_split or 0.0, flags.seed), seen
    held = open_images(eval_data)
    if held.labels != whole.labels:
        raise InputError(
            f"{eval_data} has other labels than {data}. Give images of the same kinds.",
            param="eval_data",
        )
    more = survey_images(held, on_error, seen.size).remarks
    return whole, held, ImageSurvey(seen.size, (*seen.remarks, *more))


def _config(seen: ImageSurvey, labels: tuple[str, ...], net: NetFlags) -> ConvNetConfig:
    """The size of the first image is that of all."""
    from rebar.errors import ShapeError
    from rebar.graph.models.image_config import ConvNetConfig

    try:
        return ConvNetConfig(*seen.size, labels, net.channels, net.dropout)
    except ShapeError as error:
        raise InputError(f"{error} See --stages and --dropout.", param="stages") from error


def _source(
    learn: ImageDataset,
    config: ConvNetConfig,
    net: NetFlags,
    flags: ImageFlags,
    on_error: OnError,
) -> ImageBatches:
    from rebar.dataflow.data import DataPipeline
    from rebar.dataflow.data.stage import AnyStage
    from rebar.dataflow.images import Augment, DecodeImages, ImageBatches

    size = config.height, config.width, config.channels
    stages: list[AnyStage] = [
        DecodeImages(*size, learn.where, on_error),
        Augment(flags.seed, net.shift, net.degrees),
    ]
    pipeline = DataPipeline(learn, stages, seed=flags.seed)
    rows, epochs = min(flags.batch_tokens, flags.batch), flags.passes
    return ImageBatches(pipeline, config, samples=flags.batch, rows=rows, epochs=epochs)


def _learner(config: ConvNetConfig, flags: ImageFlags) -> ImageLearner:
    from rebar.graph.image_learner import ImageLearnerOptions, open_image_learner

    return open_image_learner(
        config,
        ImageLearnerOptions(
            max_rows=flags.batch_tokens,
            seed=flags.seed,
            recompute=flags.recompute,
            threads=flags.own_threads,
            memory=flags.memory,
            isa=places().isa,
        ),
    )


def _write(out: Path, learner: ImageLearner, data: str) -> dict[str, str]:
    """OUT/model.rebar."""
    from rebar.graph.weights.classifier import write_classifier

    path = out / "model.rebar"
    values = {parameter.name: parameter.value for parameter in learner.parameters}
    origin = {"tool": "rebar train-images", "source": Path(data).name}
    write_classifier(path, out.resolve().name, learner.config, values, origin)
    return {"model": str(path), "size": format_size(path.stat().st_size)}
