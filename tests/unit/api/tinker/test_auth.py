from __future__ import annotations

import jwt

from support.api.users import User, refusal


async def test_a_token_stands_for_its_key(ann: User) -> None:
    token = (await ann.http.post("auth/token")).json()["jwt"]

    me = await ann.http.get("auth/apikey/me", headers={"X-API-Key": token})

    assert me.json()["name"] == "ann"
    assert me.json()["details"]["user_details"] == {"email": "ann"}
    claims = jwt.decode(token, options={"verify_signature": False})
    assert (claims["sub"], claims["org_id"], claims["email"]) == ("ann", "local", "")
    assert claims["exp"] - claims["iat"] > 5 * 60  # clients renew it that long before it ends


async def test_logging_out_leaves_the_key_valid(ann: User) -> None:
    assert (await ann.http.delete("auth/apikey/me")).status_code == 204

    assert (await ann.http.get("auth/apikey/me")).status_code == 200
    refusal(await ann.http.get("auth/apikey/me", headers={"X-API-Key": "tml-unknown"}), 401)
