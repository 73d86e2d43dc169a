#!/usr/bin/env bash
# Runs one suite of tests: make test-only WHAT=SUITE. `make test` runs rust and python at once.
#
#   core          what needs no framework, in a copy without any package
#   rust          cargo's tests
#   python        what pytest runs without PyTorch, a cluster or an hour
#   aarch64       the store on ARM, emulated (gcc-aarch64-linux-gnu, qemu-user)
#   etcd          the journal in etcd, and jobs on it (Go 1.26)
#   fuzz          any bytes as frames, checkpoints, record files and records, FUZZ_SECONDS (120) each
#   images        the wheel, and images with a real Docker engine (root)
#   kubelet       that a real kubelet says what our nodes say (root, containerd, runc)
#   kubernetes    a real API server, with pods as processes (root)
#   loom          the store's lock-free waiting in every order that threads can take
#   memory        the memory of ten million rows (1.6 GB)
#   parquet-java  exported tables read by Java (a JDK, Maven)
set -euo pipefail
cd "$(dirname "$0")/.."
[ "${1:-help}" = help ] || set -x

pytest() {
    # PYTEST_FLAGS is a list of words.
    # shellcheck disable=SC2086
    .venv/bin/pytest ${PYTEST_FLAGS:-} "$@"
}

# edl-python is the extension: it is linked by Python, and tested from there. No page of a crate has
# an example to run.
rust=(cargo test --locked --workspace --exclude edl-python --lib --bins --tests)

case ${1:-help} in
all) # Many of pytest's tests wait for processes; cargo compiles and runs meanwhile.
    log=$(mktemp)
    nice "${rust[@]}" >"$log" 2>&1 &
    cargo=$!
    trap 'kill "$cargo" 2>/dev/null || true; rm -f "$log"' EXIT
    python_status=0 rust_status=0
    "$0" python || python_status=$?
    wait "$cargo" || rust_status=$?
    cat "$log"
    exit $((python_status | rust_status))
    ;;
core) # Pages tell of packages too, so the tests of pages are left out.
    copy=$(mktemp -d)
    trap 'rm -rf "$copy"' EXIT
    git ls-files -z | xargs -0 cp --parents -t "$copy"
    cp elasticdl/_core.abi3.so "$copy/elasticdl/"
    rm -rf "$copy"/elasticdl/packages/*/ "$copy/tests/packages"
    python=$PWD/.venv/bin
    cd "$copy"
    git init --quiet
    # shellcheck disable=SC2086
    PYTHONPATH=$copy "$python/pytest" ${PYTEST_FLAGS:-} --ignore-glob='*/test_keras_*' \
        --ignore-glob='*/test_torch_*' -m 'not (keras or torch or long or s3 or postgresql)' \
        --ignore=tests/unit/test_page_commands.py --ignore=tests/unit/test_docs.py \
        --ignore=tests/unit/test_troubleshooting.py \
        --deselect=tests/unit/observe/test_document.py::test_the_page_has_the_schema_of_the_code tests/unit
    ;;
rust) "${rust[@]}" ;;
python)
    .venv/bin/python -m tests.clusters.kafka.jars --if-possible
    OMP_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 pytest
    ;;
aarch64) # The test that is left out runs its own binary once more, which only the emulator can.
    rustup target add aarch64-unknown-linux-gnu
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu' \
        CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
        cargo test --locked --release --target aarch64-unknown-linux-gnu --no-fail-fast \
        --package edl-optim --package edl-store -- --skip a_full_disk_leaves_nothing_behind
    ;;
etcd)
    .venv/bin/python -m tests.clusters.kubernetes.binaries etcd
    .venv/bin/pytest -m etcd tests
    ;;
fuzz)
    # Without the address sanitizer: the crates forbid unsafe code, and what is looked for are
    # panics. RUSTC_BOOTSTRAP lets a stable compiler count which code the bytes reach.
    test -x "$CACHE/fuzz/bin/cargo-fuzz" ||
        cargo install --quiet --locked --root "$CACHE/fuzz" cargo-fuzz --version 0.13.1
    for target in frame checkpoint recordio example; do
        RUSTC_BOOTSTRAP=1 PATH=$CACHE/fuzz/bin:$PATH cargo fuzz run --sanitizer none \
            --target-dir "$CARGO_TARGET_DIR/fuzz" $target -- \
            -max_total_time="${FUZZ_SECONDS:-120}" -max_len=16384 -timeout=20 -print_final_stats=1
    done
    ;;
images)
    ELASTICDL_TEST_ROOT_FS=$CACHE/images/bookworm-python.tar .venv/bin/pytest -m images tests/packages/kubernetes/images
    ;;
kubelet)
    .venv/bin/python -m tests.clusters.kubernetes.binaries kubelet pause
    .venv/bin/pytest -m kubelet tests
    ;;
kubernetes) .venv/bin/pytest -m kubernetes tests ;;
loom)
    RUSTFLAGS='--cfg edl_loom' cargo test --locked --package edl-store --lib models \
        --target-dir "$CARGO_TARGET_DIR/loom"
    ;;
memory) cargo test --locked --release --package edl-store --test memory -- --ignored ;;
parquet-java) scripts/parquet_java.sh ;;
*)
    set +x
    sed -n '2,/^set/s/^#\( \|$\)//p' "$0" >&2
    exit 2
    ;;
esac
