from types import SimpleNamespace

from elasticdl.packages.page import own_profile


def test_the_profile_is_that_of_the_backend_that_trains(tmp_path, monkeypatch):
    def end():
        """End what was begun."""

    idle = SimpleNamespace(begin_profile=lambda folder: None)
    trains = SimpleNamespace(begin_profile=lambda folder: end)
    monkeypatch.setattr(own_profile, "known", lambda: {"idle": idle, "trains": trains})
    assert own_profile.begin(tmp_path) is end
    monkeypatch.setattr(own_profile, "known", lambda: {"idle": idle})
    assert own_profile.begin(tmp_path) is None
