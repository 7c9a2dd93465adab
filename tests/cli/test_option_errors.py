"""Wrong values of options, as jsonargparse reports them and as they are said in one line."""

from argparse import ArgumentError
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import pytest
from jsonargparse import ArgumentParser

from sheafprop.cli.option_errors import describe_option_error, describe_value_error


class Logger:
    """What an option takes."""


class FileLogger(Logger):
    def __init__(self, save_dir: str):
        self.save_dir = save_dir


@dataclass
class Size:
    width: float | Literal["auto"] = 1.0
    parts: int | None = None

    def __post_init__(self):
        if self.width != "auto" and self.width < 0:
            raise ValueError(f"'width' must not be negative (got {self.width})")


@pytest.fixture
def parser():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--trainer.logger", type=Logger | Iterable[Logger] | bool | None)
    parser.add_argument("--trainer.sink", type=Logger | None)
    parser.add_argument("--steps", type=int | None)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--mode", type=Literal["open", "shut"] | None)
    parser.add_argument("--names", type=tuple[Literal["a", "b"], ...])
    parser.add_argument("--size", type=Size | None)
    parser.add_argument("--build", type=Literal["sum"] | Callable[[Iterable], Logger])
    return parser


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--steps=many", "'--steps' must be an integer or null (got 'many')"),
        ("--rate=fast", "'--rate' must be a number (got 'fast')"),
        ("--mode=ajar", "'--mode' must be 'open', 'shut' or null (got 'ajar')"),
        ("--names=a", "'--names' must be a list of 'a' or 'b' (got 'a')"),
        ("--names=[a, c]", "'--names' must be a list of 'a' or 'b' (got 'c')"),
        (
            "--trainer.logger=file",
            "'--trainer.logger' must be Logger, a list of Logger, true, false or null (got "
            "'file'). Give the name of a class, such as FileLogger, with its arguments as "
            "--trainer.logger.NAME=VALUE, or a configuration: --config logger/csv, --config "
            "logger/tensorboard, --config logger/wandb or --config logger/wandb_online",
        ),
        (
            "--trainer.sink=FleLogger",
            "'--trainer.sink' must be Logger or null (got 'FleLogger'). Give the name of a class, "
            "such as FileLogger, with its arguments as --trainer.sink.NAME=VALUE",
        ),
        (
            f"--trainer.sink={__name__}.FileLogger",
            "'--trainer.sink' cannot be FileLogger: the following arguments are required: "
            "save_dir. Give arguments as --trainer.sink.NAME=VALUE",
        ),
        ("--size.width=wide", "'--size.width' must be a number or 'auto' (got 'wide')"),
        ("--size.width=nan", "'--size.width' must be a number or 'auto' (got 'nan')"),
        ("--size.parts=x", "'--size.parts' must be an integer or null (got 'x')"),
        ("--stops=1", "unrecognized arguments: --stops=1"),
    ],
)
def test_a_wrong_value_is_described_in_one_line(parser, word, message):
    with pytest.raises(ArgumentError) as caught:
        parser.parse_args([word])
    assert describe_option_error(str(caught.value), parser) == message


def test_a_name_or_a_class_is_accepted_where_the_option_takes_both(parser):
    with pytest.raises(ArgumentError) as caught:
        parser.parse_args(["--build=max"])
    text = describe_option_error(str(caught.value), parser)
    assert text.startswith("'--build' must be 'sum' or the name of a class (got 'max')")
    assert "\n" not in text


def test_a_value_out_of_range_is_described_by_its_class_alone(parser):
    config = parser.parse_args(["--size.width=-2"])
    with pytest.raises(ValueError, match="Subtypes") as caught:
        parser.instantiate_classes(config)
    assert describe_value_error(str(caught.value)) == "'width' must not be negative (got -2.0)"
    for own in ("'width' must not be negative (got -2.0)", "two\nlines", ""):
        assert describe_value_error(own) == own
