#!/bin/bash
# Once, on a login node: an environment with the site's MPI. Batch files load the same modules, and activate it.
set -euo pipefail
module load "${MPI_MODULE:-openmpi}"
python3 -m venv "${ENVIRONMENT:-$HOME/pblas-env}"
# shellcheck disable=SC1091
. "${ENVIRONMENT:-$HOME/pblas-env}/bin/activate"
# Built with the site's mpicc: no wheel of an MPI is in this environment.
pip install --no-binary mpi4py mpi4py
pip install 'pblas[cli,hdf5]'
python -m pblas info
