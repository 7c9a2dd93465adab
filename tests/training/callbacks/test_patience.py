from sheafprop.training import Patience
from tests.toy import toy_data
from tests.training.test_sheaf_completion import fit


def test_patience_stops_a_run_that_does_not_improve(tmp_path):
    _, run = fit(tmp_path, 50, callbacks=[Patience(checks=2)], lr=1e-9)
    assert run.current_epoch < 10


def test_patience_lets_a_falling_loss_go_on(tmp_path):
    data = toy_data(without=("valid", "train_valid"))
    _, run = fit(tmp_path, 8, data, callbacks=[Patience(checks=2)])
    assert run.early_stopping_callback.monitor == "train/loss"
    assert run.current_epoch == 8


def test_the_checks_that_are_set_now_hold_after_loading():
    old, new = Patience(checks=2), Patience(checks=7)
    old.wait_count = 1
    new.load_state_dict(old.state_dict())
    assert (new.wait_count, new.patience) == (1, 7)
