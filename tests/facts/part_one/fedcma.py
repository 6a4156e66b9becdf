"""What the chapter on Fed-CMA says."""

from statistics import median

from facts import half, is_open, over, pair, runs, stored
from facts.fedcma import MNIST, PLANE, WHOLE, WRITERS, at_edge, broken, by_means
from facts.part_one.which_method import trial
from hetfl_book import ledger, report
from hetfl_book.headtohead import ranking
from hetfl_book.ledger import results
from hetfl_book.papers import fedcma
from hetfl_core import records

LATE, EEG, COMMON = "fedcma/mnist-late", "fedcma/spaces-bci-common40", "flic/bci-common40"
PULLS = {"heads": "lam1 1, lam2 0", "means": "lam1 0, lam2 1", "both": "lam1 1, lam2 1", "one mean": "marginal"}
PAPER = ledger.paper_table("fedcma", 2).pivot_table(index="experiment", columns="method", values="value").loc[MNIST]


def plane(pulls: str, base: str = "Local"):
    return pair(PLANE, f"Fed-CMA, {PULLS[pulls]}", base)


def seeds(*where: str, method: str = "Local") -> set[int]:
    return {len(runs(experiment, method)) for experiment in where}


def best_in_grid(experiment: str) -> str:
    """The setting of Fed-CMA that held-out training samples chose."""
    tried = [r for r in stored() if r.experiment == f"{experiment}-grid" and r.method.startswith("Fed-CMA,")]
    return max(tried, key=lambda r: r.metrics["balanced_accuracy"]).method


def heart(size: str = "all", over: str = "training alone", method: str = "Fed-CMA", measure: str = ranking.MEASURE):
    return report.gained("heart", method, over, size, measure)


def chosen(size: str, name: str) -> str:
    """At which edge of the grid a number of Fed-CMA's setting for the hospitals lies."""
    [told] = records.load(experiment=f"headtohead/heart-{size}-tuning", method="Fed-CMA")
    return told.settings["edges"].get(name, "")


def as_many_settings() -> bool:
    """Whether with a sigmoid, too, each method was tried with as many settings as without."""
    return len({len(fedcma.GRID[name]) for name in ("Fed-CMA", "Local", "Fed-CMA, sigmoid", "Local, sigmoid")}) == 1


def half_as_long() -> bool:
    """Whether the setting of FedAvg of the whole network was chosen in runs of half the rounds."""
    tried, ran = (
        {r.settings["rounds"] for r in stored() if r.experiment in where and r.method.startswith(WHOLE)}
        for where in (["fedcma/mnist-grid"], MNIST)
    )
    return {2 * rounds for rounds in tried} == ran


def wide(gap) -> bool:
    """Whether an interval reaches more than two points to either side."""
    return gap.high - gap.low > 4


def differ_in_eeg():
    return results.difference(runs(EEG, EEG_METHOD), runs(COMMON, "Local"))


def same_people() -> bool:
    """Whether the EEG is that of FLIC's chapter: 40 people and the electrodes that all of them have."""
    fed, flic = (
        {r.federation["fingerprint"]: r.federation for r in stored() if r.experiment == e} for e in (EEG, COMMON)
    )
    return fed.keys() == flic.keys() and {f["n_clients"] for f in fed.values()} == {40}


EEG_METHOD = "Fed-CMA, lam1 1, lam2 0.1"
alone, head, head_alone = (
    over(MNIST, "Fed-CMA", "Local"),
    over(MNIST, "Fed-CMA", "FedAvg"),
    over(MNIST, "FedAvg", "Local"),
)
ahead = over(MNIST, "Local, sigmoid", "Fed-CMA")
by_alpha = [pair(e, "Fed-CMA", "Local") for e in MNIST]
sigmoid, both = over(MNIST, "Local, sigmoid", "Local"), over(MNIST, "Fed-CMA, sigmoid", "Local, sigmoid")
head_matters = over(MNIST, "Fed-CMA", "mean sharing")
last = pair(WRITERS, "Fed-CMA", "FedAvg")
writers, late = pair(WRITERS, "Fed-CMA", "Local"), pair(LATE, "Fed-CMA", "Local")
lead = PAPER["Fed-CMA"] - PAPER["Local"]
whole = [gap for e in MNIST for gap in runs(e, WHOLE) - runs(e, "Fed-CMA")]
sent, net = 32 * 10 + 10 + 10 * 32, 784 * 128 + 128 + 128 * 32 + 32 + 32 * 10 + 10
zeros, plain = "FedAvg, zeros", heart(over="logistic regression alone")
added = by_means()
joined = plane("both", "Fed-CMA, lam1 1, lam2 0")
left = trial(zeros, "own step", score="at_own_share") - trial("network alone", "finals", score="at_own_share")
"""What zeros gain where every hospital has its threshold at its own share of the ill, in points."""

FACTS = [
    # the lead, and what travels
    ("this gains {:.1f} points over training alone, give or take {:.1f}", alone.mean, half(alone), alone.low > 0),
    ("training alone gains {:.1f} points, more than Fed-CMA without it or with it", sigmoid.mean, ahead.low > 0, both.high < 0),
    ("averaging the last layer alone reaches most of that", head_alone.mean > 2 / 3 * alone.mean),
    ("FedAvg of the whole of it ended higher in {} of {} runs", sum(gap > 0 for gap in whole), len(whole)),
    ("together {}. FedAvg sends", sent),
    ("which is 104 938 numbers or {:.0f} times as many", net / sent, net == 104_938),
    # four made-up hospitals, ten stored runs
    ("We stored ten", seeds(PLANE) == {10}),
    ("Sharing only heads costs {:.1f} ± {:.1f} points", -plane("heads").mean, half(plane("heads")), plane("heads").high < 0),
    ("sharing only means costs as much", abs(plane("heads").mean - plane("means").mean) < 0.1, plane("means").high < 0),
    ("are {:.1f} points better than heads only, give or take {:.1f}", joined.mean, half(joined), joined.low > 0),
    ("cannot tell their gain of {:.1f} ± {:.1f} points", plane("both").mean, half(plane("both")), is_open(plane("both"))),
    ("is clearly worse than training alone", plane("one mean").high < 0),
    # the real hospitals, and EEG
    ("Fed-CMA is {:.1f} points below training alone with all patients of the hospitals", -heart().mean, is_open(heart())),
    ("and {:.1f} below with a tenth of them", -heart("tenth").mean, is_open(heart("tenth"))),
    ("both well within chance", wide(heart()), wide(heart("tenth"))),
    ("A logistic regression alone is {:.1f} ± {:.1f} points above Fed-CMA with all patients", -plain.mean, half(plain), is_open(plain)),
    (
        "Where each hospital runs Fed-CMA by itself it is {:.1f} points worse in either size",
        heart("all", "nothing exchanged").mean,
        all(is_open(heart(size, "nothing exchanged")) for size in ("all", "tenth")),
        abs(heart("all", "nothing exchanged").mean - heart("tenth", "nothing exchanged").mean) < 0.1,
    ),
    ("On EEG, too, we see no difference", is_open(differ_in_eeg()), same_people(), best_in_grid(EEG) == EEG_METHOD),
    (
        "tuning chose the weakest pull and the smallest learning rate on offer",
        all(chosen("all", name) == "smallest" for name in ("head_weight", "mean_weight", "lr")),
    ),
    ("is {:.1f} ± {:.1f} points of balanced accuracy better than training alone. But most of this is", heart(method=zeros).mean, half(heart(method=zeros)), heart(method=zeros).low > 0, left["heart", "all"] < heart(method=zeros).mean / 2),
    ("we see no difference in AUC", abs(heart(method=zeros, measure="auc").mean) < 0.5, is_open(heart(method=zeros, measure="auc"))),
    ("runs on ten random splits", set(report.head_to_head("heart", "all")["seeds"]) == {10}),
    ("every interval includes zero", is_open(differ_in_eeg()), is_open(heart()), is_open(heart("tenth"))),
    # the paper's MNIST, and FEMNIST
    ("ran it on five random splits", seeds(*MNIST) == {5}),
    ("Fed-CMA gains {:.1f} points over training alone, give or take {:.1f}. By α this runs from {:.1f} to {:.1f}", alone.mean, half(alone), min(x.mean for x in by_alpha), max(x.mean for x in by_alpha)),
    ("only at the two largest α does its interval exclude zero", [x.low > 0 for x in by_alpha] == [False, False, True, True], [e.rpartition("-")[2] for e in MNIST] == sorted(e.rpartition("-")[2] for e in MNIST)),
    ("The paper reports {:.1f}, but with another network and from a lower level", lead.mean(), all(runs(e, "Local").mean() > PAPER["Local"][e] + 3 for e in MNIST)),
    ("averages only the last layer gains {:.1f} points, give or take {:.1f}. Against it we can show no gain", head_alone.mean, half(head_alone), head_alone.low > 0, is_open(head)),
    ("On two of the four splits class means add {:.1f} ± {:.1f} points, which may be chance", added.mean, half(added), is_open(added)),
    ("Training alone with a sigmoid behind the features is ahead of Fed-CMA without or with one", ahead.low > 0, both.high < 0),
    ("lie below it, further where Fed-CMA has one too", -ahead.mean > both.mean),
    ("Against it we can show no gain, nor against FedGen", is_open(over(MNIST, "Fed-CMA", "FedGen"))),
    ("Fed-CMA is {:.1f} ± {:.1f} points ahead of class means only", head_matters.mean, half(head_matters), head_matters.low > 0),
    ("one mean per class is clearly better than one mean for all", over(MNIST, "Fed-CMA", "Fed-CMA, marginal").low > 0),
    ("ahead of training alone, but not clearly of sharing the last layer only", alone.low > 0, is_open(head)),
    ("writer, Fed-CMA gains {:.1f} ± {:.1f} points over training alone", writers.mean, half(writers), writers.low > 0),
    ("Fed-CMA is {:.1f} ± {:.1f} points ahead of the last layer only", last.mean, half(last), last.low > 0),
    ("clients that join after training gain {:.1f} ± {:.1f} points over training alone", late.mean, half(late), late.low > 0),
    ("you gain {:.1f} ± {:.1f} points on MNIST without sending anything, {:.1f} ± {:.1f} more than Fed-CMA", sigmoid.mean, half(sigmoid), ahead.mean, half(ahead), sigmoid.low > 0, ahead.low > 0),
    ("with the same sigmoid, tuned like all others, is {:.1f} ± {:.1f} points behind that", -both.mean, half(both), both.high < 0, as_many_settings()),
    ("ahead in {} of {} runs on MNIST, but it broke down in five, and the means are not shown to differ", sum(gap > 0 for gap in whole), len(whole), sum(map(broken, MNIST)) == 5, *(is_open(pair(e, WHOLE, "Fed-CMA")) for e in MNIST), is_open(over(MNIST, WHOLE, "Fed-CMA"))),
    ("FedAvg ended above Fed-CMA in {} of {} runs, by {:.1f} points in the median over all", sum(gap > 0 for gap in whole), len(whole), median(whole)),
    ("In the other five its training broke down", sum(map(broken, MNIST)) == sum(gap < 0 for gap in whole) == 5, half_as_long()),
    # what the page computes live
    ("about one and a half times as far apart", lambda page: 1.35 < page["seen"]["trained alone"]["apart"] < 1.65),
    ("which stands below the figure, is about a half", lambda page: 0.4 < page["seen"]["Fed-CMA"]["apart"] < 0.6),
    ("more than half of the patients in both cases", lambda page: all(50 < x["linear"] < 67 for x in page["seen"].values())),
    ("Next to chance, {:.0f} %,", lambda page: page["seen"]["Fed-CMA"]["chance"]),
    ("the diagnosis alone already gives {:.0f} %", lambda page: page["seen"]["Fed-CMA"]["label alone"]),
    ("which our linear discriminators do not even reach", lambda page: all(x["linear"] < x["label alone"] for x in page["seen"].values())),
    ("right for nine in ten even with Fed-CMA", lambda page: round(page["seen"]["Fed-CMA"]["forest"], -1) == 90),
    ("at most 3 of 106 patients with a diagnosis", lambda page: abs(float(page["p_k"][3].max()) - 3 / 106) < 1e-9),
    # exercises, quiz, box, last words
    ("which makes {:.0f} %. Always naming the third hospital gives {:.0f} %", 100 * 300 / 400, 100 * 200 / 400),
    ("A discriminator names the right client for {:.0f} % of the samples", lambda page: page["seen"]["Fed-CMA"]["label alone"]),
    ("and chance is {:.0f} %", lambda page: page["seen"]["Fed-CMA"]["chance"]),
    ("Which simpler method comes closest", head.mean < over(MNIST, "Fed-CMA", "mean sharing").mean < alone.mean),
    ("MNIST and FEMNIST have five seeds", seeds(*MNIST, WRITERS) == {5}),
    ("and the toy ten, and EEG three", seeds(PLANE) == {10}, differ_in_eeg().n == 3),
    ("on the hospitals tuning chose the weakest pull on offer", at_edge("Fed-CMA"), chosen("tenth", "mean_weight") == "smallest"),
    ("FEMNIST has {} of the paper's 923 writers", {r.federation["n_clients"] for r in stored() if r.experiment == WRITERS}.pop()),
    ("Zurich has too few healthy patients", not ranking.clients(records.load(experiment="headtohead/heart-all")).query("client == 'Zurich'")["counts"].any()),
    ("a client sends {} numbers instead of 104 938", sent),
    ("It gains {:.1f} ± {:.1f} points over training alone, and averaging the last layer alone gains {:.1f} ± {:.1f}", alone.mean, half(alone), head_alone.mean, half(head_alone)),
    ("Training alone with a sigmoid gains {:.1f} ± {:.1f}", sigmoid.mean, half(sigmoid)),
    ("On the hospitals it gained nothing that we could see", heart().mean < 0, heart("tenth").mean < 0),
]  # fmt: skip

GIVEN = ("300 of 1000 patients", "60 of the 80 patients")
