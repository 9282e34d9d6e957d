"""Names that tell who a machine is, replaced by placeholders that still tell its devices apart."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: Names that kernels and systemd give by driver, slot or number. Others may be a host's, a person's or a MAC address.
_GENERIC_NAME = re.compile(
    r"(mlx[45]|bnxt_re|efa|irdma|i40iw|qedr|hfi1|qib|cxgb4|hns|ionic|erdma|mana|rxe|siw|usnic)_(bond_)?\d{1,3}"
    r"|(eth|ib|hsi|bond|enP|eno|ens|enp|wlp|wlan)\d{1,5}([a-z]{1,3}\d{1,5}){0,4}"
    r"|(roce|ibp|rdmap|rocep|roceP)\d{1,5}([a-z]{1,3}\d{1,5}){0,4}"
)


@dataclass
class Redactor:
    """Gives each secret of a kind a number, in the order in which they are met."""

    _known: dict[str, dict[str, str]] = field(default_factory=dict)

    def place(self, kind: str, secret: str) -> str:
        """The placeholder for a secret ("cluster0"): the same for the same one."""
        known = self._known.setdefault(kind, {})
        return known.setdefault(secret, f"{kind}{len(known)}")

    def name(self, name: str, kind: str) -> str:
        """The name of an interface where it says nothing but driver, slot or number, else a placeholder."""
        return name if _GENERIC_NAME.fullmatch(name) else self.place(f"{kind}-", name)
