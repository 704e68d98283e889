"""Our pairs in torchtitan, without a fork: ``torchtitan.train --module dataprep.train.titan --config trained``.

source           documents of a pair, as torchtitan's loader wants them; numpy only
config_registry  the job -> torchtitan's Trainer.Config; where torchtitan looks for what ``--config`` names
"""
