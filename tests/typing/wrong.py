"""A user's mistakes; pyright must report exactly the marked lines."""

import lenmem
from lenmem.models.lantm import LANTM
from lenmem.models.lstm import LSTM
from lenmem.nn.cells import LSTMCell
from lenmem.tasks.lantm import Copy

LANTM(hiden_size=3)  # wrong: reportCallIssue
LANTM(hidden_size="3")  # wrong: reportArgumentType
LANTM(weighting="sofmax")  # wrong: reportArgumentType
LSTM(layer=2)  # wrong: reportCallIssue
LSTMCell()  # wrong: reportCallIssue
Copy(vocabulry=3)  # wrong: reportCallIssue
lenmem.Training(step=3)  # wrong: reportCallIssue
lenmem.Experiment(model=LANTM())  # wrong: reportCallIssue
lenmem.Experiment(LANTM(), Copy())  # wrong: reportArgumentType, reportArgumentType
lenmem.train(lenmem.Experiment(Copy(), LANTM())).parameters  # wrong: reportAttributeAccessIssue
lenmem.trian  # wrong: reportAttributeAccessIssue
lenmem.evaluation.plots.plot_curve  # wrong: reportAttributeAccessIssue
