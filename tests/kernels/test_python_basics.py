"""What a cell's state, values and errors are."""

from sandboxd.protocol import Preparing, Started


async def test_state_is_kept_and_the_last_expression_is_the_value(sandbox):
    first = await sandbox.run("x = 41\nprint('out')\nx + 1")
    assert (first.status, first.exit_code, first.kernel, first.stdout) == ("ok", 0, "new", "out\n")
    assert [entry.data for entry in first.results] == [{"text/plain": "42"}]
    second = await sandbox.run("x")
    assert (second.kernel, second.execution_count) == ("kept", 2)
    assert second.results[0].data == {"text/plain": "41"}
    assert len(sandbox.told(Preparing)) == len(sandbox.told(Started)) == 1


async def test_contexts_are_apart(sandbox):
    await sandbox.run("x = 1")
    outcome = await sandbox.run("x", context="other")
    assert outcome.error.name == "NameError"
    assert outcome.kernel == "new"
