"""Who learns what: small, real attacks on what leaves a client, and what clipping, noise and sums do to them.

The adversary is the server, honest but curious: it runs the protocol as it stands, keeps every message that it gets and
what it sent before, and knows who takes part in which round. It may also control one client (the *colluder*), whose
data and model it then has. Nothing else of the simulation is handed to an attack, unless the attack's name or docstring
says so.

=========================== ========================================= ============================= ==================
attack                      what is inferred                          who needs what                 chance
=========================== ========================================= ============================= ==================
`labels.direct_scores`      which classes a client holds              its messages                   AUC 0.5
`labels.learned_shares`     which classes, how many of each           messages; labels of others     AUC 0.5; mean share
`linking.link`              whose message this is, names removed      messages of two rounds         1 / clients
`linking.alike`             which clients hold alike data             messages                       correlation 0
`membership.loss_scores`    whether a sample was trained on           message, colluder, the sample  AUC 0.5
`membership.mean_scores`    the same, from a sent class mean          message, embedding, sample     AUC 0.5
`inversion.decode`          a client's class means as inputs          message, embedding, colluder   cosine 0, error 1
`watching.unmix`            single moves from sums, over the rounds   sums, who took part            as above
=========================== ========================================= ============================= ==================

`watching` has the server's view, `scores` the figures, `defences` what a client can do: `defences.guarded` clips and
noises the uploads of any method. `survey.survey` runs all of them on one run.
"""
