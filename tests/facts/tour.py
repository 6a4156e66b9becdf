"""What the page that goes through the book in 45 minutes says."""

import numpy as np

from facts import Fact
from facts.part_one import which_method
from facts.part_one.deployment import LEARNED, many, talking
from facts.part_one.hospitals import HOSPITALS, WAYS, gain, second_study
from hetfl_book import report
from hetfl_book.headtohead import sites

tried = ("FLIC-Class", "late fusion", which_method.ZEROS)
more, exchanged = (
    {m: report.gained("heart", m, over) for m in tried} for over in ("training alone", "nothing exchanged")
)
zeros = more[which_method.ZEROS]
in_order = second_study(), all(gain(w, h).low <= 0 for w in WAYS for h in HOSPITALS)
"""Whether no way of learning together is shown to order a hospital's patients better, in two studies."""

first = next(r for r in which_method.FOUND if r.experiment == "headtohead/heart-all").per_client
healthy = dict(zip(first["client"], first["rarest"], strict=True))
zurich = sites.reached("heart", "auc").mean(axis=1).unstack("client")["Zurich"]

FACTS: list[Fact] = [
    ("Zurich's row rests on three healthy test patients, so its {:.0f} and {:.0f} say little", zurich[which_method.LOGISTIC], zurich[which_method.NETWORK], healthy["Zurich"] == 3),
    ("Whatever FLIC-Class gains here, it gains without any exchange", abs(exchanged["FLIC-Class"].mean) < 0.05),
    ("zeros, does as well as the clever ones, and of these three only its intervals exclude zero", zeros.mean == max(g.mean for g in more.values()), *([m for m, g in found.items() if g.low > 0 or g.high < 0] == [which_method.ZEROS] for found in (more, exchanged))),
    ("correction no effect of the exchange is certain", which_method.sure(which_method.EXCHANGES, "_sharing").empty),
    ("zeros lose {:.0f} points", -which_method.GAINS.loc[which_method.ZEROS, "thyroid, all"]),
    ("But most of this lead is a better threshold", which_method.SHARES["heart", "all"] < zeros.mean / 2),
    ("Logistic regression alone is {:.1f} points above the network alone", report.gained("heart", which_method.LOGISTIC, "training alone").mean),
    ("in AUC no method is shown to be ahead of it", *in_order),
    ("and {:.1f} is guessing, {:.1f} in the last column", 0.5, talking["link_chance"].mean()),
    ("Of FedRep, whose first field is blank, a server with a helper still learns some classes", bool(np.isnan(many.loc["FedRep", "presence_direct"])), many.loc["FedRep", LEARNED] > 0.58),
    ("tells the server which classes a client holds", talking["presence_direct"].min() > 0.85, talking["presence_direct"].notna().mean() > 0.7),
    ("its messages are recognised from round to round", (talking["link"] > 0.85).mean() > 0.9),
]  # fmt: skip
