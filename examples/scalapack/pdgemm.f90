! C = A B with ScaLAPACK: m x k times k x n, all three block-cyclic over a grid of processes.
!
! gfortran pdgemm.f90 -l:libscalapack-mpich.so.2.2 -o pdgemm && mpiexec -n 4 ./pdgemm
program pdgemm_example
  implicit none
  integer, parameter :: m = 500, n = 400, k = 300, mb = 64, nb = 32
  integer :: iam, nprocs, ictxt, nprow, npcol, myrow, mycol

  ! 1. Arrange the processes as a grid.
  call blacs_pinfo(iam, nprocs)
  nprow = int(sqrt(real(nprocs)))
  npcol = nprocs / nprow
  call blacs_get(-1, 0, ictxt)
  call blacs_gridinit(ictxt, 'R', nprow, npcol)
  call blacs_gridinfo(ictxt, nprow, npcol, myrow, mycol)
  if (myrow >= 0) call multiply()
  call blacs_exit(0)

contains

  subroutine multiply()
    integer :: desca(9), descb(9), descc(9), info, i, j
    integer :: ma, na, mb_loc, nb_loc, mc, nc
    double precision, allocatable :: a(:, :), b(:, :), c(:, :)
    double precision :: element
    integer, external :: numroc, indxl2g

    ! 2. How much of each matrix is here.
    ma = numroc(m, mb, myrow, 0, nprow)
    na = numroc(k, nb, mycol, 0, npcol)
    mb_loc = numroc(k, mb, myrow, 0, nprow)
    nb_loc = numroc(n, nb, mycol, 0, npcol)
    mc = numroc(m, mb, myrow, 0, nprow)
    nc = numroc(n, nb, mycol, 0, npcol)

    ! 3. Describe the matrices.
    call descinit(desca, m, k, mb, nb, 0, 0, ictxt, max(1, ma), info)
    call descinit(descb, k, n, mb, nb, 0, 0, ictxt, max(1, mb_loc), info)
    call descinit(descc, m, n, mb, nb, 0, 0, ictxt, max(1, mc), info)

    ! 4. Fill the local arrays: A(i, j) = mod(i + 2 j, 7) - 3 and B(i, j) = mod(3 i + j, 5) - 2.
    allocate(a(ma, na), b(mb_loc, nb_loc), c(mc, nc))
    do j = 1, na
      do i = 1, ma
        a(i, j) = mod(indxl2g(i, mb, myrow, 0, nprow) + 2 * indxl2g(j, nb, mycol, 0, npcol), 7) - 3
      end do
    end do
    do j = 1, nb_loc
      do i = 1, mb_loc
        b(i, j) = mod(3 * indxl2g(i, mb, myrow, 0, nprow) + indxl2g(j, nb, mycol, 0, npcol), 5) - 2
      end do
    end do

    ! 5. Multiply.
    call pdgemm('N', 'N', m, n, k, 1.0d0, a, 1, 1, desca, b, 1, 1, descb, 0.0d0, c, 1, 1, descc)

    ! 6. Look at some elements, which every process of the grid gets.
    do i = 1, m, 166
      call pdelget('A', ' ', element, c, i, i / 2 + 1, descc)
      if (myrow == 0 .and. mycol == 0) print '(a, i4, a, i4, a, f10.1)', 'C(', i, ',', i / 2 + 1, ') =', element
    end do

    ! 7. End the grid.
    call blacs_gridexit(ictxt)
  end subroutine multiply

end program pdgemm_example
