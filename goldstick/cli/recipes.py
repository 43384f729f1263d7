"""``goldstick recipes``."""

from __future__ import annotations

import textwrap

import click
from click.shell_completion import CompletionItem

from goldstick.cli.console import print_json


def complete_recipe(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Sentences that begin with what is typed, and files."""
    from goldstick.recipes.sentence import continuations

    return [*map(CompletionItem, continuations(incomplete)), CompletionItem(incomplete, type="file")]


@click.group()
def recipes() -> None:
    """How to write a recipe in a word, with examples, and the schema of recipe files."""


@recipes.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_(as_json: bool) -> None:
    """The words of a recipe and their order, and recommended recipes."""
    from goldstick.recipes.words import DEFAULT_METHOD, RECOMMENDED, SCHEME_LINES, grammar, vocabulary

    if as_json:
        print_json(RECOMMENDED)
        return
    methods = [name for name, word in vocabulary().items() if word.slot == "method"]
    before, scheme, behind = grammar().partition("SCHEME")
    lines = [
        "A recipe is words joined by '-', in this order; [those] may be left out:",
        "",
        f"  {before}",
        f"      {scheme}{behind}",
        *textwrap.wrap(
            f"METHOD  {', '.join(methods)}; {DEFAULT_METHOD} where none is named",
            width=79,
            initial_indent="  ",
            subsequent_indent=" " * 10,
        ),
        f"  SCHEME  {SCHEME_LINES[0]}",
        *(f"          {line}" for line in SCHEME_LINES[1:]),
        "",
        *(f"{sentence:<30} {when}" for sentence, when in RECOMMENDED.items()),
        "",
        "goldstick recipes show RECIPE prints its YAML; docs/recipes.md has all words.",
    ]
    click.echo("\n".join(lines))


@recipes.command()
@click.argument("recipe", shell_complete=complete_recipe)
def show(recipe: str) -> None:
    """The YAML that RECIPE stands for, as a start for a file of your own."""
    import yaml

    from goldstick.recipes.needs_data import needs_data
    from goldstick.recipes.recipe import Recipe
    from goldstick.recipes.sentence import parse

    mapping = parse(recipe).recipe()
    loaded = Recipe.load(recipe)
    if needs_data(loaded.stages):
        mapping["calibration"] = loaded.calibration.model_dump(include={"dataset", "samples", "seq_len"})
    click.echo(yaml.safe_dump(mapping, sort_keys=False, default_flow_style=None, width=1000).rstrip("\n"))


@recipes.command()
def schema() -> None:
    """The JSON schema of recipes, for editors."""
    from goldstick.recipes.schema import recipe_schema

    print_json(recipe_schema())
