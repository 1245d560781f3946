"""A fair share for each address: who makes room, and who gets in."""

from specdemo.ui.runs.limits import Holdings


def test_the_first_thing_of_the_address_with_the_most_goes():
    things = {"one": "modest", "two": "greedy", "three": "greedy"}
    shares = Holdings(things.values())
    assert shares == {"modest": 1, "greedy": 2} and shares.to_go(things) == "two"
    assert shares.to_go({"one": "modest"}) == "one", "where no other one can go"
    assert shares.to_go({}) is None
    assert Holdings({"modest": 9, "greedy": 2}).to_go(things) == "one", "by what is held, not by how many"


def test_among_equals_the_first_one_goes():
    assert Holdings("ab").to_go({"one": "b", "two": "a"}) == "one"


def test_nobody_gives_way_to_one_who_would_then_have_as_much():
    shares = Holdings({"greedy": 3, "more": 2, "one": 1})
    things = {"x": "more", "y": "greedy", "z": "one"}
    assert shares.to_go(things, newcomer="new") == "y"
    assert shares.to_go(things, newcomer="one") == "y"
    assert shares.to_go(things, newcomer="more") is shares.to_go(things, newcomer="greedy") is None


def test_bytes_of_one_address_are_bounded_and_a_modest_one_always_gets_its_share():
    shares = Holdings()
    assert shares.take("greedy", 100, most=100) and not shares.take("greedy", 1, most=100)
    assert shares.take("modest", 50, most=100) and not shares.take("modest", 1, most=100)
    shares.give_back("greedy", 101)
    assert shares == {"modest": 51} and shares.take("modest", 49, most=100)
