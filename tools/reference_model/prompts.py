"""The exact prompt forms of the evaluation tasks, which training uses too."""

from __future__ import annotations

from tools.reference_model.choice import LETTERS, Choice

CHOICE_HEADER = "以下是中国关于{subject_name}的单项选择题，请选出其中的正确答案。\n\n"


def check_prompt(passage: str, question: str) -> str:
    """BoolQ; the answer is ` yes` or ` no`."""
    return f"{passage}\nQuestion: {question}?\nAnswer:"


def ask_prompt(title: str, context: str, question: str) -> str:
    """SQuAD; the answer is a space, the span and a newline."""
    return f"Title: {title}\n\nBackground: {context}\n\nQuestion: {question}\n\nAnswer:"


def choice_question(choice: Choice, *, answer_word: str) -> str:
    """The question, its four options and the word that asks for the letter, without a header."""
    options = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, choice.options, strict=True))
    return f"{choice.question}\n{options}\n{answer_word}"


def choice_prompt(choice: Choice) -> str:
    """C-Eval; the answer is the letter, with or without a space before it."""
    header = CHOICE_HEADER.format(subject_name=choice.subject_name)
    return header + choice_question(choice, answer_word="答案：")
