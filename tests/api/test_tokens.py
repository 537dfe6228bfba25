import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.api.tokens import FINGERPRINT_BYTES, Credential, Token
from ravnest.errors import TokenError

FINGERPRINT = bytes(range(FINGERPRINT_BYTES))


@pytest.mark.parametrize("role", ["provider", "requester", "viewer", "operator"])
def test_a_token_is_read_as_it_was_made(role):
    token = Token.make(role, FINGERPRINT)
    assert Token.parse(f"  {token}\n") == token


def test_no_two_tokens_are_alike():
    made = [Token.make("provider", FINGERPRINT) for _ in range(100)]
    assert len({token.id for token in made}) == len({token.secret for token in made}) == 100


@given(st.text())
def test_anything_else_is_refused_without_being_repeated(text):
    with pytest.raises(TokenError) as caught:
        Token.parse(text)
    assert len(text) < 12 or text not in str(caught.value)


def test_half_a_token_is_refused():
    text = str(Token.make("operator", FINGERPRINT))
    for length in range(len(text)):
        with pytest.raises(TokenError):
            Token.parse(text[:length])


def test_a_credential_is_read_as_it_was_made():
    credential = Credential.make(17)
    assert Credential.parse(str(credential)) == credential


@pytest.mark.parametrize("text", ["", "rvc1_7_", "rvc1_x_" + "a" * 43, "rvc1_7_" + "ä" * 43])
def test_other_credentials_are_refused(text):
    with pytest.raises(TokenError):
        Credential.parse(text)


@pytest.mark.parametrize("made", [Token.make("operator", FINGERPRINT), Credential.make(3)])
def test_secrets_are_not_shown_by_accident(made):
    assert made.secret not in repr(made)
