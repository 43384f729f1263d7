"""``goldstick recipes``."""

from __future__ import annotations

import click

from goldstick.cli.console import console, print_json


@click.group()
def recipes() -> None:
    """The recipes that come with goldstick, and the schema of your own."""


@recipes.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_(as_json: bool) -> None:
    """Names and descriptions of the presets."""
    from goldstick.recipes.recipe import Recipe, preset_names

    described = {name: Recipe.load(name).description for name in preset_names()}
    if as_json:
        print_json(described)
        return
    from goldstick.report.terminal import print_table

    print_table(console(), "Recipes", ("recipe", "description"), [list(item) for item in described.items()])


@recipes.command()
@click.argument("name")
def show(name: str) -> None:
    """The YAML of a preset."""
    from goldstick.recipes.recipe import Recipe, preset_text

    Recipe.load(name)
    click.echo(preset_text(name).rstrip("\n"))


@recipes.command()
def schema() -> None:
    """The JSON schema of recipes, for editors."""
    from goldstick.recipes.recipe import recipe_schema

    print_json(recipe_schema())
