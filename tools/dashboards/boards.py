"""All dashboards."""

from dashboards.gateway import GATEWAY
from dashboards.platform import PLATFORM
from dashboards.rollouts import ROLLOUTS
from dashboards.run import RUN
from dashboards.trainer import TRAINER

DASHBOARDS = (RUN, ROLLOUTS, GATEWAY, TRAINER, PLATFORM)
