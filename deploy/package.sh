#!/usr/bin/env bash
# Makes packages for Debian 12 from a build, with the folders and files of `cmake --install`.
#
#   deploy/package.sh [--out FOLDER] [--version VERSION] [--with-libtorch] [--with-parquet] [BUILD]
#
#   --out FOLDER       default build/packages
#   --version VERSION  default the project's version
#   --with-libtorch    also titan-libtorch: the parts of the LibTorch wheel that titan-rank needs (460 MB)
#   --with-parquet     also titan-parquet: the reader of Parquet files, with Arrow from the pyarrow wheel (60 MB)
#   BUILD              default build/release; a build without LibTorch gives no titan-rank
#
# DEBFULLNAME and DEBEMAIL name the maintainer, as for Debian's own tools. Contents and scripts of the packages: docs/howto/install.md and deploy/debian.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)

out=$source/build/packages build=$source/build/release version='' libtorch=0 parquet=0
fail() {
  echo "package: $*" >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,12p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    --out | --version) [ $# -ge 2 ] || fail "$1 needs a value (see --help)"; printf -v "${1#--}" %s "$2"; shift 2 ;;
    --with-libtorch) libtorch=1; shift ;;
    --with-parquet) parquet=1; shift ;;
    -*) fail "unknown option '$1' (see --help)" ;;
    *) build=$1; shift ;;
  esac
done
[ -f "$build/CMakeCache.txt" ] || fail "$build is not a build folder; deploy/install.sh or 'cmake --preset release' makes one"
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }

packages=(titanctl titan-controller titan-worker titan-common titan-doc)
[ "$(cached TITAN_TORCH)" = OFF ] || packages+=(titan-rank)
[ $libtorch = 0 ] || packages+=(titan-libtorch)
[ $parquet = 0 ] || packages+=(titan-parquet)
version=${version:-$(cached CMAKE_PROJECT_VERSION)}
architecture=$(dpkg --print-architecture)
wheels=$(find "$(cached TITAN_DEPS)/venv/lib" -maxdepth 2 -name site-packages 2>/dev/null | head -n 1 || true)
maintainer="${DEBFULLNAME:-Titan} <${DEBEMAIL:-titan@example.org}>"
torch=$(sed -n 's/^torch==\([^ ]*\) .*/\1/p' "$source/deploy/requirements/base.txt")
date=$(git -C "$source" log -1 --format=%cd --date=rfc2822 2>/dev/null || date -R)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
mkdir -p "$out"

install_component() {  # COMPONENT ROOT [STRIP]
  DESTDIR=$2 cmake --install "$build" --prefix /usr --component "$1" ${3:+--strip} >"$work/log" 2>&1 || {
    tail -n 20 "$work/log" >&2
    fail "the build in $build lacks parts of $1: build them first (ninja -C $build)"
  }
}

# Debian 12 has units in /lib, and settings for operators in /etc.
arrange() {
  local root=$1
  if [ -d "$root/usr/lib/systemd" ]; then
    mkdir -p "$root/lib"
    mv "$root/usr/lib/systemd" "$root/lib/"
    rmdir --ignore-fail-on-non-empty "$root/usr/lib"
  fi
  if [ -d "$root/usr/share/titan/env" ]; then
    mkdir -p "$root/etc"
    mv "$root/usr/share/titan/env" "$root/etc/titan"
    rmdir --ignore-fail-on-non-empty "$root/usr/share/titan"
    sed -i 's,/usr/share/titan/env/,/etc/titan/,' "$root"/lib/systemd/system/*.service
  fi
}

# Prints the versioned packages that the package's programs are linked with, or nothing without programs.
libraries() {
  local root=$1 programs
  mapfile -t programs < <(find "$root/usr/bin" -type f 2>/dev/null | sort)
  [ ${#programs[@]} -gt 0 ] || return 0
  mkdir -p "$work/source/debian"
  echo "Source: titan" >"$work/source/debian/control"
  # Debian has no package of LibTorch; ours provides it.
  (cd "$work/source" && dpkg-shlibdeps -O --ignore-missing-info "-l$work/torch/usr/lib/titan/torch/lib" \
    "-l$work/torch/usr/lib/titan/nvidia/cu13/lib" "${programs[@]/#/-e}" 2>"$work/log") | sed 's/^shlibs:Depends=//' ||
    { cat "$work/log" >&2; return 1; }
}

add_texts() {  # PACKAGE ROOT
  local texts=$2/usr/share/doc/$1
  mkdir -p "$texts"
  "$source/deploy/debian/make_copyright.sh" "$1" "$wheels" >"$texts/copyright"
  printf 'titan (%s) bookworm; urgency=medium\n\n  * Made from the source tree.\n\n -- %s  %s\n' "$version" "$maintainer" "$date" |
    gzip -9n >"$texts/changelog.gz"
}

add_control() {  # PACKAGE ROOT
  local control=$2/DEBIAN script depends
  depends=$(libraries "$2")
  mkdir -p "$control"
  {
    sed -e "s/@VERSION@/$version/g" "$source/deploy/debian/$1.control"
    printf 'Version: %s\nArchitecture: %s\n' "$version" "$(is_for_all "$1" && echo all || echo "$architecture")"
    printf 'Maintainer: %s\nSection: science\nPriority: optional\n' "$maintainer"
    printf 'Installed-Size: %s\n' "$(du -ks --exclude=DEBIAN "$2" | cut -f1)"
  } | awk -v more="$depends" '
    /^Depends:/ { depends = substr($0, 10); next }
    /^Description:/ { description = 1 }
    description && (/^Description:/ || /^ /) { text = text $0 "\n"; next }
    { print }
    END {
      depends = more (more != "" && depends != "" ? ", " : "") depends
      if (depends != "") print "Depends: " depends
      printf "%s", text
    }' >"$control/control"
  for script in postinst prerm postrm; do
    [ -f "$source/deploy/debian/$1.$script" ] || continue
    sed -e "s/@TORCH@/$torch/g" "$source/deploy/debian/$1.$script" >"$control/$script"
    chmod 755 "$control/$script"
  done
  if [ -d "$2/etc" ]; then (cd "$2" && find etc -type f -printf '/%p\n' | sort >DEBIAN/conffiles); fi
  (cd "$2" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 -r md5sum >DEBIAN/md5sums)
  if [ -f "$source/deploy/debian/$1.lintian-overrides" ]; then
    install -Dm644 "$source/deploy/debian/$1.lintian-overrides" "$2/usr/share/lintian/overrides/$1"
  fi
}
is_for_all() { [ "$1" = titan-common ] || [ "$1" = titan-doc ]; }

make_package() {
  local root=$work/$1 file
  install_component "$1" "$root" strip
  arrange "$root"
  add_texts "$1" "$root"
  add_control "$1" "$root"
  file=$out/$1_${version}_$(is_for_all "$1" && echo all || echo "$architecture").deb
  # Fast compression, because LibTorch is large.
  dpkg-deb --root-owner-group -Zxz -z1 --build "$root" "$file" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
  echo "$file"
  rm -rf "$root"
}

case " ${packages[*]} " in *" titan-rank "*) CMAKE_INSTALL_MODE=ABS_SYMLINK install_component titan-libtorch "$work/torch" ;; esac
for package in "${packages[@]}"; do make_package "$package"; done
