"""C-Eval's 52 subjects: the Chinese name its prompts use, and the category its results are grouped by."""

from __future__ import annotations

from typing import NamedTuple


class Subject(NamedTuple):
    """A subject's Chinese name and its category."""

    chinese: str
    category: str


SUBJECTS: dict[str, Subject] = {
    "accountant": Subject("注册会计师", "Other"),
    "advanced_mathematics": Subject("高等数学", "STEM"),
    "art_studies": Subject("艺术学", "Humanities"),
    "basic_medicine": Subject("基础医学", "Other"),
    "business_administration": Subject("工商管理", "Social Science"),
    "chinese_language_and_literature": Subject("中国语言文学", "Humanities"),
    "civil_servant": Subject("公务员", "Other"),
    "clinical_medicine": Subject("临床医学", "Other"),
    "college_chemistry": Subject("大学化学", "STEM"),
    "college_economics": Subject("大学经济学", "Social Science"),
    "college_physics": Subject("大学物理", "STEM"),
    "college_programming": Subject("大学编程", "STEM"),
    "computer_architecture": Subject("计算机组成", "STEM"),
    "computer_network": Subject("计算机网络", "STEM"),
    "discrete_mathematics": Subject("离散数学", "STEM"),
    "education_science": Subject("教育学", "Social Science"),
    "electrical_engineer": Subject("注册电气工程师", "STEM"),
    "environmental_impact_assessment_engineer": Subject("环境影响评价工程师", "Other"),
    "fire_engineer": Subject("注册消防工程师", "Other"),
    "high_school_biology": Subject("高中生物", "STEM"),
    "high_school_chemistry": Subject("高中化学", "STEM"),
    "high_school_chinese": Subject("高中语文", "Humanities"),
    "high_school_geography": Subject("高中地理", "Social Science"),
    "high_school_history": Subject("高中历史", "Humanities"),
    "high_school_mathematics": Subject("高中数学", "STEM"),
    "high_school_physics": Subject("高中物理", "STEM"),
    "high_school_politics": Subject("高中政治", "Social Science"),
    "ideological_and_moral_cultivation": Subject("思想道德修养与法律基础", "Humanities"),
    "law": Subject("法学", "Humanities"),
    "legal_professional": Subject("法律职业资格", "Humanities"),
    "logic": Subject("逻辑学", "Humanities"),
    "mao_zedong_thought": Subject("毛泽东思想和中国特色社会主义理论体系概论", "Social Science"),
    "marxism": Subject("马克思主义基本原理", "Social Science"),
    "metrology_engineer": Subject("注册计量师", "STEM"),
    "middle_school_biology": Subject("初中生物", "STEM"),
    "middle_school_chemistry": Subject("初中化学", "STEM"),
    "middle_school_geography": Subject("初中地理", "Social Science"),
    "middle_school_history": Subject("初中历史", "Humanities"),
    "middle_school_mathematics": Subject("初中数学", "STEM"),
    "middle_school_physics": Subject("初中物理", "STEM"),
    "middle_school_politics": Subject("初中政治", "Social Science"),
    "modern_chinese_history": Subject("近代史纲要", "Humanities"),
    "operating_system": Subject("操作系统", "STEM"),
    "physician": Subject("医师资格", "Other"),
    "plant_protection": Subject("植物保护", "Other"),
    "probability_and_statistics": Subject("概率统计", "STEM"),
    "professional_tour_guide": Subject("导游资格", "Humanities"),
    "sports_science": Subject("体育学", "Other"),
    "tax_accountant": Subject("税务师", "Other"),
    "teacher_qualification": Subject("教师资格", "Social Science"),
    "urban_and_rural_planner": Subject("注册城乡规划师", "Other"),
    "veterinary_medicine": Subject("兽医学", "STEM"),
}
