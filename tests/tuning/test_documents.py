import pytest

from isotherm.checkup.load import Loading, load
from isotherm.errors import InputError
from isotherm.language import LANGUAGES
from isotherm.tuning.documents import LEAST, Material, TextReader, reading_of

NUMBERS = TextReader(lambda text: [int(word) for word in text.split()])
FRAMED = TextReader(NUMBERS.encode, (100,), (101, 102))


def counting(count: int, reading: TextReader = NUMBERS) -> Material:
    return Material("numbers.txt", " ".join(map(str, range(count))), reading)


def test_windows_follow_one_another():
    assert counting(23).documents(5, 99).tolist() == [[5 * i + j for j in range(5)] for i in range(4)]


def test_of_many_windows_some_are_taken_from_all_over_the_text():
    assert counting(100).documents(5, 4)[:, 0].tolist() == [0, 30, 65, 95]


def test_special_tokens_stand_around_each_document_and_count():
    assert counting(12, FRAMED).documents(6, 4).tolist() == [
        [100, 3 * i, 3 * i + 1, 3 * i + 2, 101, 102] for i in range(4)
    ]


def test_lines_are_documents_of_their_own_and_short_ones_are_left_out():
    text = "1 2 3 4\n5 6\n\n7 8 9\n1 1 1\n2 2 2 2 2"
    assert Material("x", text, NUMBERS, "lines").documents(3, 9).tolist() == [
        [1, 2, 3],
        [7, 8, 9],
        [1, 1, 1],
        [2, 2, 2],
    ]


@pytest.mark.parametrize("cut", ["windows", "lines"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_text_that_is_too_short_is_refused_with_the_numbers(cut, language):
    with pytest.raises(InputError) as refused:
        Material("short.txt", "1 2 3 4 5 6 7 8 9\n1 2 3", NUMBERS, cut).documents(4, 9)
    said = refused.value.text.to(language)
    assert "short.txt" in said
    assert "4" in said
    assert str(LEAST) in said
    assert ("12" if cut == "windows" else "2") in said


def test_columns_are_told_by_their_tabs():
    assert Material("x", "a b\tc\nd\te\tmore\n", NUMBERS).columns == [["a b", "c"], ["d", "e"]]
    assert Material("x", "a\tb\nno tab\n", NUMBERS).columns == []


def test_a_tokenizer_of_transformers_says_what_stands_around_a_text():
    reading = reading_of(load(None, Loading()), None)
    assert (reading.before, reading.after, reading.mask) == ((101,), (102,), 103)
    assert reading.encode("attention is heat") == [3086, 2003, 3684]


def test_any_function_reads_text():
    assert reading_of(None, NUMBERS.encode).encode("3 4") == [3, 4]
