"""What of a prefix on the command line is a token."""

import pytest

import resharpen as rs
from resharpen.analysis.inspection import read_prefix
from resharpen.experiments.specs.spec import Setting
from resharpen.tasks import Dyck

SETTING = Setting(Dyck(2, 3), 9)


def test_tokens_go_by_name_or_number():
    names = list(SETTING.task.token_names)
    assert read_prefix(SETTING, f"{names[0]}, 1,{names[2]}") == [0, 1, 2]


@pytest.mark.parametrize("word", ["²", "①", "-1", "99", "", "1.0"])
def test_what_is_neither_is_told_in_a_line(word):
    with pytest.raises(rs.UserError, match="unknown token") as error:
        read_prefix(SETTING, word)
    assert "\n" not in str(error.value)
